//! The test bed's own tests: it must be true before it can judge anything.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    net::Ipv6Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use ctrlmesh_e2e::{ApiServer, AuditLevel, Families, Node, Rule, images, kube_binary, until};
use serde_json::{Value, json};

const SHORT: Duration = Duration::from_secs(10);
/// A name more of the shared server.
const EXTRA: &str = "api.example.test";

/// A server for the tests that neither stop one nor want another audit log. It ends with the last
/// of these tests.
fn shared() -> Result<Arc<ApiServer>> {
    static SHARED: Mutex<Weak<ApiServer>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(api) = shared.upgrade() {
        return Ok(api);
    }
    let builder = ApiServer::builder().bind(Ipv6Addr::UNSPECIFIED.into()).extra_name(EXTRA);
    let api = Arc::new(builder.start()?);
    *shared = Arc::downgrade(&api);
    Ok(api)
}

#[test]
fn two_api_servers_run_at_once() -> Result<()> {
    let (first, second) = (shared()?, ApiServer::start()?);
    ensure!(first.address() != second.address());
    first.kubectl(&["create", "configmap", "here"])?;
    ensure!(first.client().get("/api/v1/namespaces/default/configmaps/here")?.status == 200);
    ensure!(second.client().get("/api/v1/namespaces/default/configmaps/here")?.status == 404);
    Ok(())
}

#[test]
fn dropped_api_server_leaves_nothing() -> Result<()> {
    let api = ApiServer::start()?;
    let pids = [api.etcd_pid(), api.server_pid().context("it runs")?];
    let bed = api.directory().to_owned();
    ensure!(bed.exists() && pids.iter().all(|&pid| is_alive(pid)));
    drop(api);
    ensure!(!bed.exists() && !pids.iter().any(|&pid| is_alive(pid)));
    Ok(())
}

#[test]
fn feature_gate_decides_whether_shard_selector_works() -> Result<()> {
    let on = ApiServer::builder().feature_gate("ShardedListAndWatch", true).start()?;
    let off = ApiServer::builder().feature_gate("ShardedListAndWatch", false).start()?;
    for api in [&on, &off] {
        for name in 0..8 {
            let object = json!({ "metadata": { "name": format!("c{name}") } });
            api.client().post("/api/v1/namespaces/default/configmaps", &object)?.json()?;
        }
    }
    let half = "shardRange(object.metadata.uid,'0x0000000000000000','0x8000000000000000')";
    let count = |api: &ApiServer, query: &str| -> Result<usize> {
        let path = format!("/api/v1/namespaces/default/configmaps?{query}");
        let list = api.client().get(&path)?.json()?;
        Ok(list["items"].as_array().context("a list has items")?.len())
    };
    let query = format!("shardSelector={half}");
    ensure!(count(&on, "")? == count(&off, "")?);
    ensure!(count(&on, &query)? < count(&on, "")?, "the gate is on and the list is whole");
    ensure!(count(&off, &query)? == count(&off, "")?, "the gate is off and the list is not whole");
    Ok(())
}

#[test]
fn audit_log_tells_who_asked_what() -> Result<()> {
    let api = ApiServer::builder().audit(AuditLevel::RequestResponse).start()?;
    let rules = [Rule::new(&[""], &["configmaps"], &["create", "get"])];
    let account = api.service_account("team", "robot", &rules)?;
    let robot = api.client().with_token(&account.token);
    let maps = "/api/v1/namespaces/team/configmaps";
    let object = json!({ "metadata": { "name": "seen" }, "data": { "key": "value" } });
    robot.post(maps, &object)?.json()?;
    ensure!(robot.get("/api/v1/secrets")?.status == 403);

    let mut reader = api.audit().reader()?;
    let created = reader.wait_for(SHORT, |entry| {
        entry.verb == "create" && entry.object_ref.as_ref().is_some_and(|o| o.name == "seen")
    })?;
    ensure!(created.user.username == account.user());
    ensure!(created.response_status.context("it was answered")?.code == 201);
    ensure!(created.request_object.context("bodies are logged")?["data"]["key"] == "value");
    let refused = reader.wait_for(SHORT, |entry| entry.request_uri == "/api/v1/secrets")?;
    ensure!(refused.response_status.context("it was answered")?.code == 403);
    ensure!(api.audit().entries()?.iter().any(|entry| entry.audit_id == created.audit_id));
    Ok(())
}

#[test]
fn audit_log_without_bodies() -> Result<()> {
    let api = shared()?;
    api.kubectl(&["create", "configmap", "bare", "--from-literal=key=value"])?;
    let created = api.audit().reader()?.wait_for(SHORT, |entry| entry.verb == "create")?;
    ensure!(created.request_object.is_none() && created.response_object.is_none());
    Ok(())
}

#[test]
fn audit_log_can_be_off() -> Result<()> {
    let api = ApiServer::builder().audit(AuditLevel::None).start()?;
    api.kubectl(&["create", "configmap", "unseen"])?;
    ensure!(api.audit().entries()?.is_empty());
    Ok(())
}

#[test]
fn watch_waits_for_what_comes() -> Result<()> {
    let api = shared()?;
    let maps = "/api/v1/namespaces/default/configmaps";
    let seen = |name: &'static str| {
        move |event: &Value| {
            let object = &event["object"]["metadata"];
            (object["name"] == name).then(|| event["type"].clone())
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        let later = scope.spawn(|| api.client().watch_until(maps, SHORT, seen("later")));
        api.kubectl(&["create", "configmap", "now"])?;
        ensure!(api.client().watch_until(maps, SHORT, seen("now"))? == "ADDED");
        api.kubectl(&["create", "configmap", "later"])?;
        ensure!(later.join().ok().context("no panic")?? == "ADDED");
        Ok(())
    })?;
    let never = api.client().watch_until(maps, Duration::from_secs(1), seen("never"));
    ensure!(never.is_err());
    ensure!(api.client().with_token("wrong").watch_until(maps, SHORT, seen("now")).is_err());
    Ok(())
}

#[test]
fn server_with_open_watches_stops() -> Result<()> {
    let api = ApiServer::start()?;
    std::thread::scope(|scope| -> Result<()> {
        let (started, has_started) = std::sync::mpsc::sync_channel(1);
        let api = &api;
        let watch = scope.spawn(move || {
            api.client().watch_until("/api/v1/namespaces", POD, |_| {
                // Kept open after its first event.
                let _ = started.try_send(());
                None::<()>
            })
        });
        has_started.recv_timeout(SHORT)?;
        let asked = Instant::now();
        api.stop()?;
        ensure!(asked.elapsed() < SHORT, "it took {:?}", asked.elapsed());
        ensure!(watch.join().ok().context("no panic")?.is_err());
        Ok(())
    })
}

#[test]
fn stopped_killed_and_paused_server_comes_back_with_its_data() -> Result<()> {
    let api = ApiServer::start()?;
    let address = api.address();
    api.kubectl(&["create", "configmap", "kept"])?;
    let kept = || api.client().get("/api/v1/namespaces/default/configmaps/kept");

    api.stop()?;
    ensure!(kept().is_err() && api.server_pid().is_none());
    api.start_again()?;
    ensure!(kept()?.status == 200 && api.address() == address);

    api.kill()?;
    ensure!(kept().is_err());
    api.start_again()?;
    ensure!(kept()?.status == 200);
    ensure!(api.start_again().is_err(), "it runs already");

    api.pause()?;
    let held = api.kubectl(&["get", "--raw=/readyz", "--request-timeout=1s"]);
    ensure!(held.is_err(), "a paused server answered");
    api.resume()?;
    ensure!(kept()?.status == 200);
    Ok(())
}

#[test]
fn compaction_makes_the_past_unreadable() -> Result<()> {
    let api = ApiServer::builder().feature_gate("ListFromCacheSnapshot", false).start()?;
    let list = api.client().get("/api/v1/namespaces/default/configmaps")?.json()?;
    let past = list["metadata"]["resourceVersion"].as_str().context("a list has one")?.to_owned();
    api.kubectl(&["create", "configmap", "later"])?;
    let exact = format!(
        "/api/v1/namespaces/default/configmaps?resourceVersion={past}&resourceVersionMatch=Exact"
    );
    ensure!(api.client().get(&exact)?.status == 200);
    ensure!(api.compact()? > past.parse()?);
    let answer = api.client().get(&exact)?;
    ensure!(answer.status == 410, "status {}", answer.status);
    ensure!(serde_json::from_str::<Value>(&answer.text)?["reason"] == "Expired");
    Ok(())
}

#[test]
fn one_server_listens_on_both_families() -> Result<()> {
    let api = shared()?;
    let port = api.address().port();
    for host in ["127.0.0.1", "[::1]"] {
        let server = format!("https://{host}:{port}");
        let kubeconfig = api.kubeconfig_for(&server, api.ca_pem(), api.admin_token())?;
        api.kubectl_client().with_kubeconfig(&kubeconfig).run(&["get", "namespaces"])?;
    }
    Ok(())
}

#[test]
fn certificate_covers_an_extra_name() -> Result<()> {
    let api = shared()?;
    let port = api.address().port();
    let kubectl = |name: &str| -> Result<String> {
        let kubeconfig = api.kubeconfig_for(&api.url(), api.ca_pem(), api.admin_token())?;
        let kubectl = api.kubectl_client().with_kubeconfig(&kubeconfig);
        kubectl.run(&["get", "--raw=/readyz", &format!("--tls-server-name={name}")])
    };
    ensure!(kubectl(EXTRA)? == "ok");
    ensure!(kubectl("other.example.test").is_err(), "a name that it does not cover, port {port}");
    Ok(())
}

#[test]
fn testbed_help_is_golden() -> Result<()> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testbed-help.txt");
    let mut help = String::new();
    for command in ["", "deps", "build", "apiserver", "node", "images", "sweep"] {
        let args = [command, "--help"];
        let args = args.iter().filter(|arg| !arg.is_empty());
        let output = Command::new(env!("CARGO_BIN_EXE_testbed")).args(args).output()?;
        help += &String::from_utf8(output.stdout)?;
        help += "\n";
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &help)?;
    }
    ensure!(
        std::fs::read_to_string(&golden)? == help,
        "run again with BLESS=1 and look at the diff"
    );
    Ok(())
}

#[test]
fn failed_start_quotes_the_log() -> Result<()> {
    let Err(error) = ApiServer::builder().flag("--no-such-flag=1").start() else {
        bail!("it started with a flag that does not exist");
    };
    ensure!(format!("{error:#}").contains("unknown flag: --no-such-flag"), "{error:#}");
    Ok(())
}

#[test]
fn killed_owner_leaves_no_process_and_is_swept() -> Result<()> {
    let mut owner = Testbed::start(&["apiserver"])?;
    let bed = PathBuf::from(owner.fact("kubeconfig")?).parent().context("in a bed")?.to_owned();
    let pids: Vec<u32> =
        owner.fact("processes")?.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    ensure!(pids.len() == 2 && pids.iter().all(|&pid| is_alive(pid)));
    let group = std::env::var(ctrlmesh_e2e::GROUP).unwrap_or_default();
    ensure!(std::fs::read_to_string(bed.join("owner.lock"))? == group);
    ctrlmesh_e2e::sweep()?;
    ensure!(bed.exists(), "a sweep took the bed of a living owner");

    owner.child.kill()?;
    owner.child.wait()?;
    until("the processes end with their owner", SHORT, || {
        Ok((!pids.iter().any(|&pid| is_alive(pid))).then_some(()))
    })?;
    // Another test's start may have swept it already: what counts is that it is gone.
    ctrlmesh_e2e::sweep()?;
    ensure!(!bed.exists(), "{} is left", bed.display());
    Ok(())
}

#[test]
fn terminated_owner_cleans_up_itself() -> Result<()> {
    let mut owner = Testbed::start(&["apiserver", "--feature-gates", "ShardedListAndWatch=true"])?;
    let bed = PathBuf::from(owner.fact("kubeconfig")?).parent().context("in a bed")?.to_owned();
    owner.terminate()?;
    ensure!(owner.child.wait()?.success() && !bed.exists());
    Ok(())
}

#[test]
fn node_runs_a_pod_with_a_native_sidecar() -> Result<()> {
    let node = Node::start()?;
    node.apply(WEB)?;
    node.wait_for("default", "pod/web", "condition=Ready", POD)?;

    ensure!(node.logs("default", "web", "app")? == "app\n");
    ensure!(node.logs("default", "web", "sidecar")? == "sidecar\n");
    let files = node.exec("default", "web", "app", &["ls", ACCOUNT])?;
    ensure!(files == "ca.crt\nnamespace\ntoken\n", "{files}");
    let service = node.kubectl(&["get", "svc", "web", "-o=jsonpath={.spec.clusterIP}"])?;
    let fetch = ["timeout", "5", "wget", "-qO-", &format!("http://{service}")];
    ensure!(node.exec("default", "web", "app", &fetch)? == "hello");

    // The Service `kubernetes`, with the pod's own token and CA.
    node.apply(&KUBECTL.replace("KUBE", &kube_binary()?.display().to_string()))?;
    node.wait_for("default", "pod/asks", "jsonpath={.status.phase}=Succeeded", POD)?;
    let versions = node.logs("default", "asks", "kubectl")?;
    ensure!(serde_json::from_str::<Value>(&versions)?["kind"] == "APIVersions", "{versions}");
    let pod_ip = node.kubectl(&["get", "pod", "asks", "-o=jsonpath={.status.podIP}"])?;
    let account = "system:serviceaccount:default:default";
    let asked = node.api().audit().reader()?.wait_for(SHORT, |entry| {
        entry.request_uri.starts_with("/api") && entry.user.username == account
    })?;
    ensure!(asked.source_ips == [pod_ip], "{:?}", asked.source_ips);

    node.restart_kubelet()?;
    let restarts = "-o=jsonpath={.status.containerStatuses[0].restartCount}";
    ensure!(node.kubectl(&["get", "pod", "web", restarts])? == "0");
    ensure!(node.exec("default", "web", "app", &["cat", "/proc/1/comm"])? == "sh\n");
    node.kubectl(&["delete", "pod", "web", "--wait=false"])?;
    node.wait_for("default", "pod/web", "delete", POD)?;
    Ok(())
}

#[test]
fn two_nodes_run_at_once_and_one_has_both_families() -> Result<()> {
    let plain = Node::start()?;
    let dual = Node::builder().families(Families::Dual).start()?;
    for node in [&plain, &dual] {
        node.apply(WEB)?;
        node.wait_for("default", "pod/web", "condition=Ready", POD)?;
    }
    let pod_ips = "-o=jsonpath={.status.podIPs[*].ip}";
    let families = |node: &Node| -> Result<(usize, usize)> {
        let ips = node.kubectl(&["get", "pod", "web", pod_ips])?;
        Ok(ips.split(' ').fold((0, 0), |(v4, v6), ip| match ip.contains(':') {
            false => (v4 + 1, v6),
            true => (v4, v6 + 1),
        }))
    };
    ensure!(families(&plain)? == (1, 0));
    ensure!(families(&dual)? == (1, 1));
    let service = dual.kubectl(&["get", "svc", "web", "-o=jsonpath={.spec.clusterIPs[1]}"])?;
    let fetch = ["timeout", "5", "wget", "-qO-", &format!("http://[{service}]")];
    ensure!(dual.exec("default", "web", "app", &fetch)? == "hello");

    drop(plain);
    ensure!(dual.exec("default", "web", "app", &fetch)? == "hello");
    Ok(())
}

#[test]
fn images_are_built_from_the_containerfiles_of_deploy() -> Result<()> {
    let node = Node::start()?;
    let program = static_program(node.api().directory())?;
    for image in [images::proxy(&program)?, images::init(&program)?] {
        node.import_image(&image)?;
        // A second time, as a test that rebuilds does.
        node.import_image(&image)?;
    }
    let size = |path: &Path| std::fs::metadata(path).map(|file| file.len());
    let archive = images::proxy(&program)?.archive;
    ensure!(size(&archive)? < size(&program)? / 2, "the symbols are in the image");
    node.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{ name: images }}
spec:
  restartPolicy: Never
  initContainers:
  - {{ name: nft, image: {init}, imagePullPolicy: Never, command: [iptables-nft-restore, --version] }}
  - {{ name: legacy, image: {init}, imagePullPolicy: Never, command: [ip6tables-legacy-save, --version] }}
  - {{ name: init, image: {init}, imagePullPolicy: Never, args: [init] }}
  containers:
  - name: proxy
    image: {proxy}
    imagePullPolicy: Never
    args: [proxy]
    securityContext: {{ runAsNonRoot: true, readOnlyRootFilesystem: true }}
"#,
        init = images::INIT,
        proxy = images::PROXY,
    ))?;
    node.wait_for("default", "pod/images", "jsonpath={.status.phase}=Succeeded", POD)?;
    ensure!(node.logs("default", "images", "nft")?.contains("(nf_tables)"));
    ensure!(node.logs("default", "images", "legacy")?.contains("(legacy)"));
    ensure!(node.logs("default", "images", "init")? == "/ctrlmesh-init init\n");
    ensure!(node.logs("default", "images", "proxy")? == "/ctrlmesh proxy\n");
    Ok(())
}

#[test]
fn killed_owner_of_a_node_leaves_nothing_that_is_not_swept() -> Result<()> {
    let mut owner = Testbed::start(&["node"])?;
    let bed = PathBuf::from(owner.fact("kubeconfig")?).parent().context("in a bed")?.to_owned();
    let name = bed.file_name().and_then(|name| name.to_str()).context("a name")?.to_owned();
    owner.kubectl(&format!("apply --filename=- <<'END'\n{WEB}\nEND"))?;
    owner.kubectl("wait --for=condition=Ready pod/web --timeout=60s")?;
    ensure!(processes_of(&name)?.len() >= 8, "{:?}", processes_of(&name)?);
    ensure!(!cgroups_of(&name)?.is_empty());
    ctrlmesh_e2e::sweep()?;
    ensure!(bed.exists(), "a sweep took the bed of a living owner");

    owner.child.kill()?;
    owner.child.wait()?;
    until("the processes end with their owner", SHORT, || {
        Ok(processes_of(&name)?.is_empty().then_some(()))
    })?;
    ctrlmesh_e2e::sweep()?;
    ensure!(!bed.exists(), "{} is left", bed.display());
    ensure!(cgroups_of(&name)?.is_empty(), "{:?}", cgroups_of(&name)?);
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    ensure!(!mounts.contains(&name), "{mounts}");
    Ok(())
}

const POD: Duration = Duration::from_secs(60);
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A pod whose native sidecar answers on port 8080, and its Service.
const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: web, labels: { app: web } }
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: sidecar
    image: localhost/busybox:1
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sh, -c, "echo sidecar; mkdir /www; printf hello >/www/index.html; exec httpd -f -p 8080 -h /www"]
  containers:
  - name: app
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, "echo app; trap 'exit 0' TERM; sleep 1000 & wait"]
    readinessProbe: { httpGet: { port: 8080 }, periodSeconds: 1 }
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec:
  ipFamilyPolicy: PreferDualStack
  selector: { app: web }
  ports: [{ port: 80, targetPort: 8080 }]
"#;

/// kubectl in a pod: the very file that runs the cluster, which is static.
const KUBECTL: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: asks }
spec:
  restartPolicy: Never
  containers:
  - name: kubectl
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [/kube, kubectl, get, --raw=/api]
    volumeMounts: [{ name: kube, mountPath: /kube, readOnly: true }]
  volumes: [{ name: kube, hostPath: { path: "KUBE", type: File } }]
"#;

/// A static program that prints its arguments, as the images want one.
fn static_program(directory: &Path) -> Result<PathBuf> {
    let source = directory.join("echo.rs");
    std::fs::write(
        &source,
        r#"fn main() { println!("{}", std::env::args().collect::<Vec<_>>().join(" ")); }"#,
    )?;
    let program = directory.join("echo");
    let status = Command::new("rustc")
        .args(["--target", "x86_64-unknown-linux-gnu", "-C", "target-feature=+crt-static", "-o"])
        .args([&program, &source])
        .status()?;
    ensure!(status.success());
    Ok(program)
}

/// The processes that have a bed's name in their command line.
fn processes_of(bed: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        // A process that ends meanwhile has no command line to read.
        let command = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(bed) {
            found.push(command);
        }
    }
    Ok(found)
}

fn cgroups_of(bed: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup")? {
        let hierarchy = hierarchy?.path();
        let candidate = hierarchy.join(format!("ctrlmesh-e2e-{bed}"));
        found.extend([candidate].into_iter().filter(|path| path.exists()));
        if hierarchy.ends_with(format!("ctrlmesh-e2e-{bed}")) {
            found.push(hierarchy);
        }
    }
    Ok(found)
}

/// Whether a process exists and is no zombie.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A `testbed` process and the facts that it printed until it was ready.
struct Testbed {
    child: Child,
    facts: HashMap<String, String>,
}

impl Testbed {
    fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_testbed"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("a pipe")?;
        let mut facts = HashMap::new();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            let (name, value) = line.split_once(' ').context("NAME VALUE")?;
            facts.insert(name.to_owned(), value.to_owned());
            if name == "ready" {
                return Ok(Self { child, facts });
            }
        }
        bail!("testbed {}: {}", args.join(" "), child.wait()?)
    }

    fn fact(&self, name: &str) -> Result<String> {
        self.facts.get(name).cloned().with_context(|| format!("testbed did not print {name}"))
    }

    /// Runs a shell line after the kubectl that the test bed shows to people.
    fn kubectl(&self, line: &str) -> Result<()> {
        let kubectl = self.fact("kubectl")?;
        let output = Command::new("sh").args(["-c", &format!("{kubectl} {line}")]).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {line}: {errors}");
        Ok(())
    }

    fn terminate(&self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        Ok(nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
