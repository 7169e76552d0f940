//! exec, attach, port-forward and logs, from an injected pod through its proxy to the real kubelet.

use std::{
    process::Output,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, images, until};
use serde_json::{Value, json};

use crate::node::toolbox::{LIMIT, Tool, Toolbox, printed};

/// The pod that the toolbox calls; of the shard, and not injected.
const POD: &str = "speaker";
const BIG: usize = 10 << 20;

/// Both transports, as kubectl and as client-go are told. A WebSocket is opened by a GET, of which
/// the audit log makes `get`; SPDY by a POST, which is `create`.
const TRANSPORTS: [Transport; 2] = [
    Transport { name: "websocket", kubectl: "true", verb: "get" },
    Transport { name: "spdy", kubectl: "false", verb: "create" },
];

#[derive(Clone, Copy)]
struct Transport {
    name: &'static str,
    kubectl: &'static str,
    verb: &'static str,
}

impl Transport {
    fn variables(self) -> [(&'static str, &'static str); 2] {
        [
            ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", self.kubectl),
            ("KUBECTL_PORT_FORWARD_WEBSOCKETS", self.kubectl),
        ]
    }
}

#[test]
fn i17_t61_exec_attach_port_forward_and_logs_reach_the_kubelet() -> Result<()> {
    let toolbox = Toolbox::start("kubelet")?;
    speaker(&toolbox, POD)?;
    toolbox.node().apply(&homeless(&toolbox).to_string())?;
    toolbox.run(Tool::Shell, &[&format!("head -c {BIG} /dev/urandom > /tmp/big")])?;
    for transport in TRANSPORTS {
        exec(&toolbox, transport).with_context(|| format!("exec by {}", transport.name))?;
        much_through_exec(&toolbox, transport).context(transport.name)?;
        a_splice_ends_with_its_command(&toolbox, transport).context(transport.name)?;
        nothing_is_spliced_on_an_error(&toolbox, transport).context(transport.name)?;
        port_forward(&toolbox, transport)
            .with_context(|| format!("port-forward by {}", transport.name))?;
    }
    for transport in TRANSPORTS {
        attach_and_logs(&toolbox, transport)
            .with_context(|| format!("attach by {}", transport.name))?;
    }
    each_transport_was_used(&toolbox)
}

/// A pod that repeats what it hears until it hears `bye`, and serves a small and a big file.
fn speaker(toolbox: &Toolbox, name: &str) -> Result<()> {
    let program = format!(
        "mkdir /www && echo pong > /www/ping && head -c {BIG} /dev/urandom > /www/big && \
         httpd -p 8080 -h /www && \
         while read -r line && [ \"$line\" != bye ]; do echo \"heard $line\"; done"
    );
    let container = json!({
        "name": "speaker",
        "image": images::BUSYBOX,
        "imagePullPolicy": "Never",
        "stdin": true,
        "command": ["/bin/sh", "-c", program],
        // It is ready when its server answers.
        "readinessProbe": { "httpGet": { "port": 8080, "path": "/big" }, "periodSeconds": 1 },
    });
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": toolbox.namespace, "labels": { "team": toolbox.team } },
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    });
    toolbox.node().apply(&pod.to_string())?;
    toolbox.node().wait_for(&toolbox.namespace, &format!("pod/{name}"), "condition=Ready", LIMIT)
}

/// A pod that no scheduler cares for: it is there, and nothing can be run in it.
fn homeless(toolbox: &Toolbox) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "nowhere", "namespace": toolbox.namespace },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{ "name": "idle", "image": images::BUSYBOX }],
        },
    })
}

/// Waits until so many connections of the toolbox are spliced.
fn until_spliced(toolbox: &Toolbox, count: f64) -> Result<()> {
    until(&format!("{count} connections are spliced"), LIMIT, || {
        let now = toolbox.metric("ctrlmesh_streams", &[("kind", "upgrade")])?;
        Ok((now == count).then_some(()))
    })
}

/// How many of the toolbox's requests were answered with this class of codes.
fn answered(toolbox: &Toolbox, class: &str) -> Result<f64> {
    toolbox.metric("ctrlmesh_requests_total", &[("leg", "outbound"), ("code_class", class)])
}

/// Runs a line of shell in the toolbox; `$TOOL` is the tool.
fn shell(toolbox: &Toolbox, transport: Transport, tool: Tool, line: &str) -> Result<Output> {
    let path = toolbox.path(tool)?;
    let mut variables = transport.variables().to_vec();
    variables.push(("TOOL", &path));
    toolbox.output(&variables, Tool::Shell, &[line])
}

/// The one `exec` event that the Go client prints.
fn exec_event(output: Output) -> Result<Value> {
    let lines = printed(output)?;
    let line = lines.lines().last().context("no event")?;
    let event: Value = serde_json::from_str(line)?;
    ensure!(event["event"] == "exec", "{event}");
    Ok(event)
}

/// Standard input, output and errors and the exit code are the command's.
fn exec(toolbox: &Toolbox, transport: Transport) -> Result<()> {
    let said = "read -r x; echo \"got $x\"; echo \"bad $x\" >&2; exit 7";
    let by_kubectl = format!("echo hello | $TOOL exec -i {POD} -- sh -c '{said}'");
    let output = shell(toolbox, transport, Tool::Kubectl, &by_kubectl)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(7), "{output:?}");
    ensure!(output.stdout == b"got hello\n" && errors.starts_with("bad hello\n"), "{output:?}");

    let by_go = format!(
        "echo hello | $TOOL exec --namespace {} --transport {} --pod {POD} --stdin -- \
         sh -c '{said}'",
        toolbox.namespace, transport.name
    );
    let event = exec_event(shell(toolbox, transport, Tool::Go, &by_go)?)?;
    ensure!(event["exitCode"] == 7 && event["transport"] == transport.name, "{event}");
    ensure!(event["stdout"]["text"] == "got hello\n", "{event}");
    ensure!(event["stderr"]["text"] == "bad hello\n", "{event}");
    until_spliced(toolbox, 0.0)
}

/// Ten megabytes there and back are the same ones.
fn much_through_exec(toolbox: &Toolbox, transport: Transport) -> Result<()> {
    let sum = toolbox.run(Tool::Shell, &["sha256sum < /tmp/big"])?;
    let began = Instant::now();
    let by_kubectl = format!("$TOOL exec -i {POD} -- cat < /tmp/big | sha256sum");
    let back = printed(shell(toolbox, transport, Tool::Kubectl, &by_kubectl)?)?;
    ensure!(back == sum, "sent {sum}, got {back}");
    tell_rate("kubectl exec, there and back", transport, began.elapsed());

    let began = Instant::now();
    let by_go = format!(
        "$TOOL exec --namespace {} --transport {} --pod {POD} --stdin -- cat < /tmp/big",
        toolbox.namespace, transport.name
    );
    let event = exec_event(shell(toolbox, transport, Tool::Go, &by_go)?)?;
    let back = &event["stdout"];
    ensure!(back["bytes"] == BIG, "{}", back["bytes"]);
    ensure!(back["sha256"].as_str() == sum.split_whitespace().next(), "{} {sum}", back["sha256"]);
    tell_rate("client-go exec, there and back", transport, began.elapsed());
    until_spliced(toolbox, 0.0)
}

fn tell_rate(what: &str, transport: Transport, took: Duration) {
    let megabytes = BIG as f64 / f64::from(1 << 20);
    let rate = megabytes / took.as_secs_f64();
    println!(
        "{what}, {}: {megabytes} MiB in {:.2} s, {rate:.1} MiB/s",
        transport.name,
        took.as_secs_f64()
    );
}

/// Spliced while the command runs; when it ends by itself or is killed, both connections end.
fn a_splice_ends_with_its_command(toolbox: &Toolbox, transport: Transport) -> Result<()> {
    for (end, wanted) in [("by itself", 0), ("killed", 137)] {
        let args = ["exec", "-i", POD, "--", "sh", "-c", "echo $$; read -r x; exit 0"];
        let variables = transport.variables();
        let mut program = toolbox.start_program(&variables, Tool::Kubectl, &args)?;
        let pid = program.wait_for(LIMIT, Value::is_u64)?.to_string();
        until_spliced(toolbox, 1.0)?;
        let began = Instant::now();
        if end == "killed" {
            toolbox.node().exec(&toolbox.namespace, POD, "speaker", &["kill", "-9", &pid])?;
        } else {
            program.say("go")?;
        }
        let status = program.end(LIMIT)?;
        ensure!(status.code() == Some(wanted), "{end}: {status}");
        until_spliced(toolbox, 0.0)?;
        println!("exec, {}: ended {end}, gone after {:?}", transport.name, began.elapsed());
    }
    Ok(())
}

/// What the API server answers instead of a 101 reaches the client as it is.
fn nothing_is_spliced_on_an_error(toolbox: &Toolbox, transport: Transport) -> Result<()> {
    let switched = answered(toolbox, "1xx")?;
    let refused = answered(toolbox, "4xx")?;
    // kubectl asks for the pod first, and for the upgrade only if there is one.
    for (args, said) in [
        ("exec nobody -- true", "pods \"nobody\" not found"),
        ("exec nowhere -- true", "pod nowhere does not have a host assigned"),
    ] {
        let output = shell(toolbox, transport, Tool::Kubectl, &format!("$TOOL {args}"))?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1) && errors.contains(said), "{output:?}");
    }
    // client-go asks for the upgrade alone.
    let by_go = format!(
        "$TOOL exec --namespace {} --transport {} --pod nobody -- true",
        toolbox.namespace, transport.name
    );
    let output = shell(toolbox, transport, Tool::Go, &by_go)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(text.contains("pods \\\"nobody\\\" not found"), "{text}");
    let asked = toolbox.asked()?;
    let entry = asked.iter().rev().find(|entry| {
        let object = entry.object_ref.as_ref();
        object.is_some_and(|object| object.subresource == "exec" && object.name == "nobody")
    });
    let status = entry.and_then(|entry| entry.response_status.as_ref()).map(|status| status.code);
    ensure!(status == Some(404), "the API server answered {status:?}");
    ensure!(answered(toolbox, "1xx")? == switched, "something was spliced");
    ensure!(answered(toolbox, "4xx")? >= refused + 2.0);
    until_spliced(toolbox, 0.0)
}

/// A small and a big file through a forwarded port, which closes with its program.
fn port_forward(toolbox: &Toolbox, transport: Transport) -> Result<()> {
    let target = format!("pod/{POD}");
    let wanted =
        toolbox.node().exec(&toolbox.namespace, POD, "speaker", &["sha256sum", "/www/big"])?;
    let wanted = wanted.split_whitespace().next().context("a sum")?;
    for tool in [Tool::Kubectl, Tool::Go] {
        let path = toolbox.path(tool)?;
        // kubectl holds its port until it is notified otherwise, and client-go's program until the end
        // of its standard input.
        let line = if matches!(tool, Tool::Go) {
            format!(
                "exec {path} portforward --namespace {} --transport {} --pod {POD} 0:8080",
                toolbox.namespace, transport.name
            )
        } else {
            format!("{path} port-forward {target} :8080 & read -r _; kill $!; wait $!; exit 0")
        };
        let program = toolbox.start_program(&transport.variables(), Tool::Shell, &[&line])?;
        let port = program.wait_until(LIMIT, |lines| lines.iter().find_map(local_port))?;
        until_spliced(toolbox, 1.0)?;
        let url = format!("http://127.0.0.1:{port}");
        let pong = toolbox.run(Tool::Curl, &["-sS", "--fail", &format!("{url}/ping")])?;
        ensure!(pong == "pong\n", "{pong}");
        let began = Instant::now();
        let line = format!("/usr/bin/curl -sS --fail {url}/big | sha256sum");
        let got = toolbox.run(Tool::Shell, &[&line])?;
        ensure!(got.starts_with(wanted), "{got} instead of {wanted}");
        tell_rate(&format!("{tool:?} port-forward"), transport, began.elapsed());
        program.finish(LIMIT)?;
        until_spliced(toolbox, 0.0)?;
    }
    Ok(())
}

/// Of `Forwarding from 127.0.0.1:PORT -> 8080`, or of the Go client's `ready`.
fn local_port(line: &Value) -> Option<u64> {
    let by_kubectl = || {
        let line = line.as_str()?.strip_prefix("Forwarding from 127.0.0.1:")?;
        line.split_whitespace().next()?.parse().ok()
    };
    line["ports"][0]["local"].as_u64().or_else(by_kubectl)
}

/// The container hears the input of attach. Its answers come by attach and by every log that is
/// followed. All streams end with the container.
fn attach_and_logs(toolbox: &Toolbox, transport: Transport) -> Result<()> {
    let pod = format!("{POD}-{}", transport.name);
    speaker(toolbox, &pod)?;
    let follow = ["logs", "--namespace", &toolbox.namespace, "--pod", &pod, "-f", "--no-stdin"];
    let mut by_go = toolbox.start_program(&[], Tool::Go, &follow)?;
    by_go.wait_for(LIMIT, |line| line["event"] == "open")?;
    let mut by_kubectl = toolbox.start_program(&[], Tool::Kubectl, &["logs", "-f", &pod])?;
    let variables = transport.variables();
    let mut attached =
        toolbox.start_program(&variables, Tool::Kubectl, &["attach", "-i", "-q", &pod])?;
    until_spliced(toolbox, 1.0)?;
    for word in ["one", "two"] {
        attached.say(word)?;
        let heard = format!("heard {word}");
        attached.wait_for(LIMIT, |line| *line == *heard)?;
        by_kubectl.wait_for(LIMIT, |line| *line == *heard)?;
        by_go.wait_for(LIMIT, |line| line["text"] == *heard)?;
    }
    let began = Instant::now();
    attached.say("bye")?;
    for (name, program) in
        [("attach", &mut attached), ("kubectl logs", &mut by_kubectl), ("go logs", &mut by_go)]
    {
        let status = program.end(LIMIT).context(name)?;
        ensure!(status.success(), "{name}: {status}");
    }
    until_spliced(toolbox, 0.0)?;
    println!(
        "attach, {}: all gone {:?} after the container's end",
        transport.name,
        began.elapsed()
    );
    let lines = by_kubectl.lines();
    ensure!(lines == ["heard one", "heard two"], "{lines:?}");
    Ok(())
}

/// From the audit log: each subresource was asked for in both ways, as the pod's ServiceAccount.
fn each_transport_was_used(toolbox: &Toolbox) -> Result<()> {
    for subresource in ["exec", "attach", "portforward"] {
        for transport in TRANSPORTS {
            let is_it = |entry: &AuditEntry| {
                let object = entry.object_ref.as_ref().map(|object| &*object.subresource);
                let code = entry.response_status.as_ref().map(|status| status.code);
                entry.source_ips.contains(&toolbox.address)
                    && (object, code) == (Some(subresource), Some(101))
                    && (&*entry.verb, &*entry.stage) == (transport.verb, "ResponseComplete")
            };
            // The log's last entry may be a moment younger than the connection's end.
            toolbox.node().api().audit().reader()?.wait_for(LIMIT, is_it)?;
            let count = toolbox.asked()?.into_iter().filter(is_it).count();
            println!("i17: {count} of {subresource} by {}", transport.name);
        }
    }
    Ok(())
}
