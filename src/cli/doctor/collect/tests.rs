//! The requests, against a server that answers each as the API server does.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    thread,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Client, Config};

use super::*;

/// Starts a server that answers each listed path with its code and body. It answers other paths with 404. Returns
/// a client of the server.
fn server(answers: &'static [(&'static str, u16, &'static str)]) -> Asked {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            lines.find(|line| line.as_ref().unwrap().is_empty());
            let target = first.split(' ').nth(1).unwrap();
            let found = answers.iter().find(|(path, ..)| *path == target.trim_end_matches('?'));
            let (code, body) = found.map_or((404, MISSING), |(_, code, body)| (*code, *body));
            let head = format!(
                "HTTP/1.1 {code} x\r\nDate: Tue, 01 Jan 2030 00:00:00 GMT\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    let _ = rustls::crypto::CryptoProvider::install_default(ctrlmesh_net::tls::provider_value());
    let mut config = Config::new(url.parse().unwrap());
    // As our own access does.
    config.default_retry = false;
    Asked { client: Client::try_from(config).unwrap() }
}

const MISSING: &str = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
const FORBIDDEN: &str = r#"{"kind":"Status","status":"Failure","reason":"Forbidden","code":403}"#;

fn right<T>(verb: &'static str, resource: &str, place: &str) -> Looked<T> {
    Err(CannotLook::Right { verb, resource: resource.to_owned(), place: place.to_owned() })
}

#[tokio::test]
async fn the_version_and_the_clock_are_those_of_the_answer() {
    let asked = server(&[("/version", 200, r#"{"gitVersion":"v1.37.1"}"#)]);
    let Server { version, date } =
        super::server(asked.path("/version", "/version", "").await.unwrap()).unwrap();
    assert_eq!(version, "v1.37.1");
    assert_eq!(date.unwrap().to_string(), "2030-01-01T00:00:00Z");
    let none = super::server(asked.path("/other", "/other", "").await.unwrap());
    assert_eq!(none.unwrap_err().to_string(), "cannot look: /version has the code 404");
}

#[tokio::test]
async fn what_is_missing_is_told_from_what_may_not_be_seen() {
    let asked = server(&[
        ("/api/v1/namespaces/ns/configmaps/there", 200, r#"{"metadata":{"name":"there"}}"#),
        ("/api/v1/namespaces/ns/configmaps/secret", 403, FORBIDDEN),
        ("/api/v1/namespaces/ns", 403, FORBIDDEN),
        ("/apis/ctrlmesh.kusionstack.io/v1alpha1", 200, r#"{"resources":[{"name":"x"}]}"#),
    ]);
    let maps = || Api::<ConfigMap>::namespaced(asked.client.clone(), "ns");
    let there = asked.get(maps(), "there").await.unwrap().unwrap();
    assert_eq!(there.metadata.name.as_deref(), Some("there"));
    assert_eq!(asked.get(maps(), "gone").await, Ok(None));
    let secret = right("get", "configmaps", " in namespace ns");
    assert_eq!(asked.get(maps(), "secret").await, secret);
    let namespaces = Api::<Namespace>::all(asked.client.clone());
    assert_eq!(asked.get(namespaces, "ns").await, right("get", "namespaces", ""));
    assert_eq!(has_definition(&asked).await, Ok(false), "the group, and another kind");
    // A kind that the API server does not know has no objects; another one is an error.
    let configs =
        Api::namespaced_with(asked.client.clone(), "ns", &Kind::ShardingConfig.api_resource());
    assert_eq!(asked.list_dynamic(configs, "configs").await, Ok(Vec::new()));
    let listed = asked.list(maps(), ListParams::default()).await;
    assert!(matches!(listed, Err(CannotLook::Failed(_))), "{listed:?}");
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let asked = server(&[
        (
            "/api/v1/namespaces/ns/configmaps?&limit=500",
            200,
            r#"{"metadata":{"continue":"c"},"items":[{"metadata":{"name":"a"}}]}"#,
        ),
        (
            "/api/v1/namespaces/ns/configmaps?&limit=500&continue=c",
            200,
            r#"{"metadata":{},"items":[{"metadata":{"name":"b"}}]}"#,
        ),
    ]);
    let maps = Api::<ConfigMap>::namespaced(asked.client.clone(), "ns");
    let listed = asked.list(maps, ListParams::default()).await.unwrap();
    let names: Vec<_> = listed.into_iter().filter_map(|map| map.metadata.name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn a_proxy_is_asked_through_the_api_server_and_its_refusal_is_an_answer() {
    const READYZ: &str = "[-]policy failed: none yet\n";
    let asked = server(&[
        ("/api/v1/namespaces/ns/pods/op-0:5441/proxy/readyz", 503, READYZ),
        ("/api/v1/namespaces/ns/pods/op-0:5441/proxy/metrics", 403, FORBIDDEN),
    ]);
    let target = Target { namespace: "ns".to_owned(), name: "op-0".to_owned(), is_own: false };
    let facts = pod(&asked, target).await;
    assert_eq!(facts.pod, Ok(None));
    let answer = facts.readyz.unwrap();
    assert_eq!((answer.code, &*answer.body), (503, READYZ));
    assert_eq!(facts.metrics, right("get", "pods/proxy", " in namespace ns"));
}

#[test]
fn the_pod_is_the_one_asked_for_or_else_the_proxys_own() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: DoctorArgs,
    }
    let own = || Some(("op-0".to_owned(), "ns".to_owned()));
    let chosen = |line: &str, own| {
        let words = std::iter::once("doctor").chain(line.split_whitespace());
        let args = <Line as clap::Parser>::parse_from(words).args;
        target(&args, "default", own).map(|it| {
            format!("{}/{}{}", it.namespace, it.name, if it.is_own { " own" } else { "" })
        })
    };
    for (line, own, wanted) in [
        ("", None, None),
        ("--namespace ns", None, None),
        ("op-0", None, Some("default/op-0")),
        ("--namespace ns op-0", None, Some("ns/op-0")),
        ("", own(), Some("ns/op-0 own")),
        ("op-0", own(), Some("ns/op-0 own")),
        ("op-1", own(), Some("ns/op-1")),
        ("--namespace other op-0", own(), Some("other/op-0")),
        ("--namespace other", own(), None),
    ] {
        assert_eq!(chosen(line, own).as_deref(), wanted, "{line}");
    }
}
