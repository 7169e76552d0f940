//! The positions that clients hold after a restart, whether the proxy knows them or not.

use std::{fs, path::PathBuf, sync::LazyLock};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ctrlmesh::wire::media::Encoding;
use http::Method;
use hyper::body::Incoming;

use super::shared::is_compacted;
use crate::support::{
    CONFIGMAPS,
    client::{self, Client, Http, chunk, request},
    events::{list, too_old},
    policies::{POLICY, everything_policy, moved_policy},
    process::{flags, run},
    proxy::{Files, Proxy, Setup},
    soon, until,
    upstream::{Call, Upstream},
};

/// The API server's current version, whenever the proxy asks for it.
const PRESENT: u64 = 5725;

/// The proxy before and after a restart, and the one API server.
struct Scene {
    upstream: Upstream,
    proxy: Proxy,
    client: Client,
    forgets: bool,
}

impl Scene {
    async fn new() -> Self {
        Self::of(Files::new, false).await
    }

    async fn of(files: impl FnOnce(&str) -> Files, forgets: bool) -> Self {
        let upstream = Upstream::start().await;
        let files = files(&upstream.ca.pem);
        let proxy = Setup { forgets, ..Setup::of(&upstream) }.start(files).await;
        let client = Client::new(&proxy, Http::Two).await;
        Self { upstream, proxy, client, forgets }
    }

    /// Kills the proxy and starts it again with another policy.
    async fn restart(self, policy: &str) -> Self {
        let Self { upstream, proxy, forgets, .. } = self;
        let files = proxy.kill();
        files.put_policy(policy);
        let proxy = Setup { forgets, ..Setup::of(&upstream) }.start(files).await;
        let client = Client::new(&proxy, Http::Two).await;
        Self { upstream, proxy, client, forgets }
    }

    /// Goes on with another client of the same pod; returns the present one.
    async fn other(&mut self) -> Client {
        let other = Client::new(&self.proxy, Http::Two).await;
        std::mem::replace(&mut self.client, other)
    }

    /// The client's next request.
    async fn call(&mut self) -> Call {
        loop {
            let call = self.upstream.call().await;
            if !is_own(&call) {
                return call;
            }
            call.json(200, &list(PRESENT));
        }
    }

    /// A list at this position, read to the end.
    async fn listed(&mut self, target: &str, rv: u64) {
        let pending = self.client.send(request(Method::GET, target));
        self.call().await.json(200, &list(rv));
        assert_eq!(client::text(pending.await.unwrap()).await, (200, list(rv)));
    }

    /// Whether a watch from this position goes upstream; otherwise it must get a 410.
    async fn resumes(&mut self, path: &str, rv: u64) -> bool {
        let target = format!("{path}?watch=1&resourceVersion={rv}");
        let mut pending = Box::pin(self.client.send(request(Method::GET, &target)));
        loop {
            tokio::select! {
                call = self.upstream.call() => {
                    if is_own(&call) {
                        call.json(200, &list(PRESENT));
                        continue;
                    }
                    if call.query("resourceVersionMatch").is_some() {
                        is_compacted(call, rv);
                        continue;
                    }
                    call.watch().end();
                    let answer = client::text(pending.await.unwrap()).await;
                    assert_eq!(answer, (200, String::new()));
                    return true;
                }
                answer = &mut pending => {
                    let (code, body) = client::whole(answer.unwrap()).await.unwrap();
                    assert_eq!((code.as_u16(), body), (200, too_old(Encoding::Json).into()));
                    return false;
                }
            }
        }
    }

    /// Waits until the state directory is valid for a policy.
    async fn noted(&self) {
        let look = || async { positions(&self.proxy.files) };
        until("the positions on disk", look, |text| text.contains("\"policy\":\"")).await;
    }
}

/// A consistent list of one object: the proxy's own.
fn is_own(call: &Call) -> bool {
    let is_own = call.query("limit").as_deref() == Some("1");
    assert!(!is_own || call.target().ends_with("/configmaps?limit=1"), "{}", call.target());
    is_own
}

fn positions(files: &Files) -> String {
    fs::read_to_string(path(files)).unwrap_or_default()
}

fn path(files: &Files) -> PathBuf {
    files.state().join("positions.json")
}

static GREEN: LazyLock<String> = LazyLock::new(|| moved_policy("green"));

#[tokio::test]
async fn bad_t76_restart_between_two_policies() {
    for (with_state, same_policy, may_resume) in
        [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
    {
        let what = format!("state {with_state}, same policy {same_policy}");
        let mut scene = Scene::of(Files::new, !with_state).await;
        scene.listed(CONFIGMAPS, 100).await;
        let is_same = scene.resumes(CONFIGMAPS, 100).await;
        assert!(is_same, "{what}");
        if with_state {
            scene.noted().await;
        }
        let mut scene = scene.restart(if same_policy { POLICY } else { &GREEN }).await;
        for path in [CONFIGMAPS, "/api/v1/configmaps"] {
            for rv in [100, 50] {
                let resumed = scene.resumes(path, rv).await;
                assert_eq!(resumed, may_resume, "{what}: {path} {rv}");
            }
        }
        let refused = if may_resume { 0.0 } else { 4.0 };
        let reason = [("reason", "expired")];
        scene.proxy.until_metric("ctrlmesh_refusals_total", &reason, refused).await;
        scene.listed(CONFIGMAPS, PRESENT).await;
        assert!(scene.resumes(CONFIGMAPS, PRESENT).await, "{what}");
    }
}

/// The next process starts with the policy of the last one, which then changes.
#[tokio::test]
async fn t76_a_change_after_a_restart_covers_what_was_shown_before_it() {
    for is_asked_before in [false, true] {
        let mut scene = Scene::new().await;
        scene.listed(CONFIGMAPS, 100).await;
        scene.noted().await;
        let mut scene = scene.restart(POLICY).await;
        if is_asked_before {
            assert!(scene.resumes(CONFIGMAPS, 100).await);
        }
        scene.proxy.change_policy(&GREEN).await;
        assert!(!scene.resumes(CONFIGMAPS, 100).await);
        assert!(!scene.resumes(CONFIGMAPS, PRESENT).await);
        scene.listed(CONFIGMAPS, PRESENT + 1).await;
        assert!(scene.resumes(CONFIGMAPS, PRESENT + 1).await);
    }
}

/// One client is shown versions that are older than what another holds: an object's own, that of a
/// list `Exact` at a version, that of a cache which lags. None lets the other resume.
#[tokio::test]
async fn t76_what_one_client_is_shown_after_a_restart_lets_no_other_resume() {
    let initial = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let fresh = "watch=1";
    let exact = "resourceVersion=277&resourceVersionMatch=Exact";
    let lagging = "resourceVersion=0";
    for query in [initial, fresh, exact, lagging] {
        // The policy changes while the proxy is away, or afterwards.
        for is_away in [true, false] {
            let mut scene = Scene::new().await;
            scene.listed(CONFIGMAPS, PRESENT).await;
            scene.noted().await;
            let mut scene = scene.restart(if is_away { &GREEN } else { POLICY }).await;
            if !is_away {
                scene.proxy.change_policy(&GREEN).await;
            }
            let pending = scene.client.send(request(Method::GET, &format!("{CONFIGMAPS}?{query}")));
            let call = scene.call().await;
            let mut streams = None;
            if query.starts_with("watch") {
                let events = call.watch();
                events.send(added(277)).await;
                let mut shown = pending.await.unwrap();
                chunk(&mut shown).await.unwrap().unwrap();
                streams = Some((events, shown));
            } else {
                call.json(200, &list(277));
                client::text(pending.await.unwrap()).await;
            }
            let one = scene.other().await;
            let resumed = scene.resumes(CONFIGMAPS, PRESENT).await;
            assert!(!resumed, "{query}, away {is_away}");
            drop((one, streams));
        }
    }
}

fn added(rv: u64) -> String {
    format!(
        "{{\"type\":\"ADDED\",\"object\":{{\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"b\",\"resourceVersion\":\"{rv}\"}}}}}}\n"
    )
}

/// The proxy's own list is forbidden or fails: an unknown bound stays unknown.
#[tokio::test]
async fn t76_a_present_that_cannot_be_asked_for_lets_nobody_resume() {
    let mut scene = Scene::new().await.restart(&GREEN).await;
    for (code, answer) in [(403, list(1)), (500, list(1)), (200, "{}".into()), (200, "<".into())] {
        let pending = scene.client.send(request(Method::GET, CONFIGMAPS));
        let own = scene.upstream.call().await;
        assert!(is_own(&own));
        assert_eq!(own.header("authorization"), Some(format!("Bearer {}", crate::support::TOKEN)));
        own.json(code, &answer);
        let call = scene.upstream.call().await;
        assert!(!is_own(&call), "asked once a request");
        call.json(200, &list(100));
        client::text(pending.await.unwrap()).await;
        let _one = scene.other().await;
        let target = format!("{CONFIGMAPS}?watch=1&resourceVersion=100");
        let pending = scene.client.send(request(Method::GET, &target));
        // The scope of the process before is known, and not how high its positions are.
        let own = scene.upstream.call().await;
        assert!(is_own(&own));
        own.json(code, &answer);
        let (code, said) = client::whole(pending.await.unwrap()).await.unwrap();
        assert_eq!((code.as_u16(), said), (200, too_old(Encoding::Json).into()), "{answer}");
    }
}

/// The API server may close a connection after an anonymous request.
#[tokio::test]
async fn t63_for_nobody_the_present_is_not_asked_for() {
    let mut scene = Scene::new().await.restart(&GREEN).await;
    let mut sent = request(Method::GET, CONFIGMAPS);
    sent.headers_mut().remove("authorization");
    let pending = scene.client.send(sent);
    let call = scene.upstream.call().await;
    assert!(!is_own(&call), "{}", call.target());
    call.json(403, "{}");
    assert_eq!(client::text(pending.await.unwrap()).await, (403, "{}".to_owned()));

    let pending = scene.client.send(request(Method::GET, CONFIGMAPS));
    let own = scene.upstream.call().await;
    assert!(is_own(&own));
    own.json(401, "{\"code\":401}");
    let said = client::text(pending.await.unwrap()).await;
    assert_eq!(said, (401, "{\"code\":401}".to_owned()), "an unknown token is told so");
    assert!(scene.upstream.is_quiet());
}

/// The deprecated form has the verb in its path, where a list would be an endless watch.
#[tokio::test]
async fn t76_the_present_is_asked_for_by_the_path_of_the_collection() {
    let mut scene = Scene::new().await.restart(&GREEN).await;
    for (target, collection) in [
        ("/api/v1/watch/configmaps", "/api/v1/configmaps"),
        ("/api/v1/watch/namespaces/ns/configmaps/", CONFIGMAPS),
    ] {
        let pending = scene.client.send(request(Method::GET, target));
        let own = scene.upstream.call().await;
        assert_eq!(own.target(), format!("{collection}?limit=1"));
        own.json(500, "{}");
        scene.upstream.call().await.watch().end();
        pending.await.unwrap();
    }
}

/// The proxy is killed while requests of the old policy go on, and starts with that policy again.
#[tokio::test]
async fn t76_the_state_directory_vouches_for_nothing_while_a_change_is_under_way() {
    let mut scene = Scene::new().await;
    scene.listed(CONFIGMAPS, 100).await;
    scene.noted().await;
    let (_pending, _answer) = open_list(&mut scene).await;
    scene.proxy.change_policy(&GREEN).await;
    assert!(positions(&scene.proxy.files).contains("\"policy\":null"));
    scene.listed(CONFIGMAPS, 101).await;
    assert!(positions(&scene.proxy.files).contains("\"policy\":null"), "a list goes on");
    let mut scene = scene.restart(POLICY).await;
    assert!(!scene.resumes(CONFIGMAPS, 101).await, "of the scope in between");
}

/// A list of the old policy shows its position last of all.
#[tokio::test]
async fn t76_what_old_requests_show_late_is_on_disk() {
    let mut scene = Scene::new().await;
    let (pending, answer) = open_list(&mut scene).await;
    scene.proxy.change_policy(&GREEN).await;
    let body = list(300);
    answer.send(body[20..].to_owned()).await;
    answer.end();
    assert_eq!(client::text(pending).await, (200, body));
    scene.noted().await;
    let mut scene = scene.restart(&GREEN).await;
    assert!(!scene.resumes(CONFIGMAPS, 300).await);
    assert!(scene.resumes(CONFIGMAPS, 301).await);
}

/// A list whose position has not arrived yet.
async fn open_list(
    scene: &mut Scene,
) -> (http::Response<Incoming>, crate::support::upstream::Stream) {
    let pending = scene.client.send(request(Method::GET, CONFIGMAPS));
    let answer = scene.call().await.stream(200, &[("content-type", "application/json")]);
    answer.send(list(300)[..20].to_owned()).await;
    (pending.await.unwrap(), answer)
}

/// A past that was unknown at the start is known once it was settled, also to the next process.
#[tokio::test]
async fn t76_a_settled_past_stays_settled() {
    let scene = Scene::new().await;
    scene.noted().await;
    let mut scene = scene.restart(&GREEN).await;
    scene.listed(CONFIGMAPS, PRESENT + 5).await;
    let look = || async { positions(&scene.proxy.files) };
    let floor = format!("\"floor\":{PRESENT}");
    until("the floor on disk", look, |text| text.contains(&floor)).await;
    let mut scene = scene.restart(&GREEN).await;
    assert!(scene.resumes(CONFIGMAPS, PRESENT + 5).await, "no client has to list");
    assert!(!scene.resumes(CONFIGMAPS, PRESENT).await);
}

/// Only its own scope ends a list: further pages pass while another resource is limited.
#[tokio::test]
async fn t24_a_limit_of_another_resource_ends_no_list() {
    for forgets in [false, true] {
        let mut scene = Scene::of(Files::new, forgets).await;
        let token = BASE64_URL_SAFE_NO_PAD
            .encode(format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":{},\"start\":\"a\"}}", PRESENT + 1));
        let page = format!(
            "{{\"kind\":\"ConfigMapList\",\"metadata\":{{\"resourceVersion\":\"{}\",\"continue\":\"{token}\"}},\"items\":[]}}",
            PRESENT + 1
        );
        let target = format!("{CONFIGMAPS}?limit=2");
        let further = format!("{target}&continue={token}");
        for target in [&target, &further] {
            if target == &further {
                let limited = POLICY.replace("[configmaps, secrets]", "[configmaps]");
                scene.proxy.change_policy(&limited).await;
                let _first = scene.other().await;
            }
            let pending = scene.client.send(request(Method::GET, target));
            scene.call().await.json(200, &page);
            let (code, body) = client::text(pending.await.unwrap()).await;
            assert_eq!(code, 200, "forgets {forgets}: {body}");
        }
    }
}

/// A full disk has no room for a new file, and the old one must not stay valid.
#[tokio::test]
async fn bad_t76_state_directory_without_room() {
    let mut scene = Scene::new().await;
    scene.listed(CONFIGMAPS, 100).await;
    scene.noted().await;
    fs::create_dir(scene.proxy.files.state().join("positions.new")).unwrap();
    scene.proxy.change_policy(&GREEN).await;
    assert_eq!(positions(&scene.proxy.files), "", "emptied, and there");
    assert!(path(&scene.proxy.files).exists());
    scene.listed(CONFIGMAPS, 101).await;
    let mut scene = scene.restart(POLICY).await;
    assert!(!scene.resumes(CONFIGMAPS, 101).await);
}

/// The policy stays if a change cannot be stored for the next process.
#[tokio::test]
async fn bad_t76_state_that_cannot_be_taken_back_keeps_the_last_good() {
    let scene = Scene::new().await;
    scene.noted().await;
    let files = &scene.proxy.files;
    fs::remove_file(path(files)).unwrap();
    fs::create_dir_all(path(files).join("x")).unwrap();
    files.put_policy(&GREEN);
    scene.proxy.until_ready_says("blue epoch 1 stays in force: --state-dir: ").await;
    fs::remove_dir_all(path(files)).unwrap();
    files.put_policy(&format!("# again\n{}", *GREEN));
    scene.proxy.until_ready_says("policy ok: blue epoch 2\n").await;
}

#[tokio::test]
async fn bad_state_directory_that_is_none() {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    fs::remove_dir(files.state()).unwrap();
    let (code, said) = run(&flags(&files, &upstream.addr.to_string())).await;
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("--state-dir") && said.contains("positions.json"), "{said}");
}

/// Files that were not written by us, or not to their end.
#[tokio::test]
async fn bad_t76_positions_that_cannot_be_read_are_unknown() {
    let long =
        format!("{{\"policy\":null,\"unknown\":false,\"floors\":[{}]}}", " ".repeat(2 << 20));
    for content in ["", "{", "{\"policy\":null}", &long] {
        let files = |ca: &str| {
            let files = Files::new(ca);
            fs::write(path(&files), content).unwrap();
            files
        };
        let mut scene = Scene::of(files, false).await;
        assert!(!scene.resumes(CONFIGMAPS, 1 << 40).await);
    }
}

/// A file longer than any that the proxy writes is not read, and what its policy showed is unknown.
#[tokio::test]
async fn bad_t76_positions_over_the_limit_are_unknown() {
    let mut scene = Scene::new().await;
    scene.listed(CONFIGMAPS, 100).await;
    scene.noted().await;
    let files = &scene.proxy.files;
    fs::write(path(files), positions(files) + &" ".repeat(2 << 20)).unwrap();
    let mut scene = scene.restart(POLICY).await;
    assert!(!scene.resumes(CONFIGMAPS, 101).await);
    scene.listed(CONFIGMAPS, PRESENT).await;
    assert!(scene.resumes(CONFIGMAPS, PRESENT).await);
    let own = [("why", "present"), ("code_class", "2xx")];
    scene.proxy.until_metric("ctrlmesh_own_requests_total", &own, 1.0).await;
}

/// Anybody may ask for resources that do not exist, without a token.
#[tokio::test]
async fn t76_invented_resources_leave_no_trace() {
    let files = |ca: &str| {
        let files = Files::new(ca);
        files.put_policy(&everything_policy("selector: {matchLabels: {shard: blue}}"));
        files
    };
    let mut scene = Scene::of(files, false).await;
    let long = "r".repeat(300);
    for (n, code) in (0..30).zip([403, 404, 401].into_iter().cycle()) {
        let pending = scene.client.send(request(Method::GET, &format!("/apis/g/v1/{long}{n}")));
        scene.upstream.call().await.json(code, "{}");
        pending.await.unwrap();
        let pending = scene.client.send(request(Method::GET, &format!("/apis/g/v1/r{n}?watch=1")));
        scene.upstream.call().await.json(code, "{}");
        pending.await.unwrap();
    }
    let green = everything_policy("selector: {matchLabels: {shard: green}}");
    scene.proxy.change_policy(&green).await;
    soon("the file", scene.noted()).await;
    let text = positions(&scene.proxy.files);
    assert!(text.contains("\"floors\":[]"), "{text}");
}

/// Nor do they take the places of those that exist.
#[tokio::test]
async fn t76_invented_resources_take_no_positions() {
    let of_secrets = |team: &str| {
        let secrets = format!(
            "limits: [{{relateResources: [{{apiGroups: [\"\"], resources: [secrets]}}], selector: \
             {{matchLabels: {{team: {team}}}}}}}, "
        );
        let all = everything_policy("selector: {matchLabels: {shard: blue}}");
        all.replace("limits: [", &secrets)
    };
    let files = |ca: &str| {
        let files = Files::new(ca);
        files.put_policy(&of_secrets("a"));
        files
    };
    let mut scene = Scene::of(files, false).await;
    for n in 0..1100 {
        let kind = if n % 2 == 0 { "" } else { "?watch=1" };
        let target = format!("/apis/g/v1/r{n}{kind}");
        let pending = scene.client.send(request(Method::GET, &target));
        scene.call().await.json(404, "{}");
        pending.await.unwrap();
    }
    scene.listed(CONFIGMAPS, 100).await;
    // It concerns all resources without a position of their own.
    scene.proxy.change_policy(&of_secrets("b")).await;
    assert!(scene.resumes(CONFIGMAPS, 100).await);
}
