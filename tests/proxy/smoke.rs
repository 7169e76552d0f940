//! The test tools themselves.

use http::Method;
use serde_json::{Value, json};

use crate::support::{
    TOKEN,
    client::{self, Client, Http, request, request_with},
    log,
    process::{Process, flags},
    proxy::{Files, Proxy},
    scene,
    upstream::Upstream,
};

#[tokio::test]
async fn a_request_goes_there_and_back() {
    for http in Http::BOTH {
        let (mut upstream, proxy, mut client) = scene(http).await;
        let sent = client.send(request(Method::GET, "/api/v1/pods?limit=1"));
        let answered = async {
            let call = upstream.call().await;
            assert_eq!(call.target(), "/api/v1/pods?limit=1");
            assert_eq!(call.header("authorization"), Some(format!("Bearer {TOKEN}")));
            call.json(200, "{}");
        };
        let (response, ()) = tokio::join!(sent, answered);
        assert_eq!(client::text(response.unwrap()).await, (200, "{}".into()));
        proxy.until_metric("ctrlmesh_requests_total", &[("verb", "list")], 1.0).await;
        assert_eq!(proxy.admin_page("/readyz").await.0, 200);
    }
}

#[tokio::test]
async fn the_first_line_of_the_log_names_the_pod() {
    let upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let flags = flags(&files, &upstream.addr.to_string());
    let env = ["POD_NAME", "POD_NAMESPACE"].map(|name| (name, name.to_lowercase()));
    for (env, pod, namespace) in
        [(&env[..], json!("pod_name"), json!("pod_namespace")), (&[], Value::Null, Value::Null)]
    {
        let process = Process::start_with(&flags, env).await;
        assert_eq!(process.listening["pod"], pod);
        assert_eq!(process.listening["namespace"], namespace);
    }
}

/// No log has a token. Every proxy of this suite checks the log of all tests when it is dropped.
/// This test checks that there is a log to check. It also checks the log of the real binary at
/// level `trace`.
#[tokio::test]
async fn no_token_is_ever_logged() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let files = Files::new(&upstream.ca.pem);
    let env = [("CTRLMESH_LOG", "trace".to_owned())];
    let process = Process::start_with(&flags(&files, &upstream.addr.to_string()), &env).await;
    upstream.serve(|call| {
        let code = if call.path().contains("missing") { 404 } else { 200 };
        call.json(code, "{\"secret\":\"object-body-5d1e\"}");
    });
    for http in Http::BOTH {
        for (addr, ca) in
            [(proxy.addr, proxy.files.mesh_ca_pem()), (process.addr, files.mesh_ca_pem())]
        {
            let mut client = Client::to(addr, &ca, http).await;
            let body = "{\"metadata\":{\"name\":\"object-body-5d1e\"}}";
            for sent in [
                request(Method::GET, "/api/v1/namespaces/ns/secrets"),
                request(Method::GET, "/api/v1/namespaces/ns/secrets/missing"),
                request(Method::GET, "//refused"),
                request(Method::GET, "/api/v1/configmaps?labelSelector=a=b=c"),
                request_with(Method::POST, "/api/v1/namespaces/ns/configmaps", body),
                request_with(Method::PUT, "/api/v1/namespaces/ns/pods/p", body),
            ] {
                if let Ok(response) = client.send(sent).await {
                    let _ = client::whole(response).await;
                }
            }
            // A request that is cancelled on its way.
            drop(client.send(request(Method::GET, "/api/v1/pods?watch=1")));
        }
    }
    drop(proxy);
    assert!(log::contains("bad_request_line") && log::contains("resource=\"secrets\""));
    assert!(!log::contains("object-body-5d1e"));
    process.signal(nix::sys::signal::Signal::SIGTERM);
    let (_, log) = process.end().await;
    assert!(log.contains("\"resource\":\"secrets\""), "{log}");
    for secret in [TOKEN, "object-body-5d1e", "PRIVATE KEY"] {
        assert!(!log.contains(secret), "{secret} was logged: {}", around(&log, secret));
    }
}

fn around<'a>(log: &'a str, needle: &str) -> &'a str {
    log.lines().find(|line| line.contains(needle)).unwrap_or_default()
}
