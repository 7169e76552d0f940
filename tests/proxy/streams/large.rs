//! Data that is larger than the memory of a sidecar.

use std::{fs, sync::Arc};

use bytes::Bytes;
use ciborium::cbor;
use ctrlmesh::{net::tls::H2, wire::media::Encoding};
use http::{HeaderValue, Method, header};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{
    client::{Client, Http, chunk, config, connect, request},
    policies::configmaps_policy,
    process::{Process, flags},
    proxy::Files,
    scrape, soon, until,
    upstream::Upstream,
};

const OBJECTS: usize = 200_000;
/// The memory that the process may take.
const LIMIT_KIB: usize = 64 << 10;
/// The namespaces whose names begin with "even-".
const EVEN: &str = r#"namespaces: {pattern: "^even-"}, clusterScoped: Exclude"#;

/// An item, in the namespace of another shard if its number is odd.
fn item(encoding: Encoding, at: usize) -> Vec<u8> {
    let namespace = if at.is_multiple_of(2) { "even-a" } else { "odd-a" };
    let name = format!("object-{at}");
    let text = "x".repeat(400);
    match encoding {
        Encoding::Protobuf => {
            let meta = [field(1, name.as_bytes()), field(3, namespace.as_bytes())].concat();
            field(2, &[field(1, &meta), field(2, text.as_bytes())].concat())
        }
        Encoding::Cbor => {
            let item = cbor!({
                "metadata" => { "name" => name, "namespace" => namespace },
                "data" => { "text" => text },
            });
            let mut bytes = Vec::new();
            ciborium::into_writer(&item.unwrap(), &mut bytes).unwrap();
            bytes
        }
        _ => {
            let meta = json!({ "name": name, "namespace": namespace });
            let item = json!({ "metadata": meta, "data": { "text": text } }).to_string();
            let comma = if at == 0 { "" } else { "," };
            format!("{comma}{item}").into_bytes()
        }
    }
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 0x7f {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
    out
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len()), bytes.to_vec()].concat()
}

/// The head and the end of a list of all items.
fn around(encoding: Encoding) -> (Vec<u8>, Vec<u8>) {
    match encoding {
        Encoding::Protobuf => {
            let meta = field(1, &field(2, b"5"));
            let items: usize = (0..OBJECTS).map(|at| item(encoding, at).len()).sum();
            let kind = [field(1, b"v1"), field(2, b"ConfigMapList")].concat();
            let raw = [vec![2 << 3 | 2], varint(meta.len() + items)].concat();
            ([b"k8s\0".to_vec(), field(1, &kind), raw, meta].concat(), Vec::new())
        }
        // An array of indefinite length in a map of three.
        Encoding::Cbor => (
            [&b"\xa3\x44kind\x4dConfigMapList\x48metadata\xa1\x4fresourceVersion\x415\x45items\x9f"[..]].concat(),
            vec![0xff],
        ),
        _ => (
            b"{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"5\"},\"items\":[".to_vec(),
            b"]}".to_vec(),
        ),
    }
}

/// The most memory that the process ever had, in KiB.
fn peak(process: &Process) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn t77_a_list_of_200_000_objects_goes_through_64_mib() {
    for encoding in [Encoding::Json, Encoding::Protobuf, Encoding::Cbor] {
        let mut upstream = Upstream::start().await;
        let files = Files::new(&upstream.ca.pem);
        files.put_policy(&configmaps_policy(EVEN));
        let mut args = flags(&files, &upstream.addr.to_string());
        args.push("--pushdown=off".into());
        let process = Process::start(&args).await;
        let mut client = Client::to(process.addr, &files.mesh_ca_pem(), Http::Two).await;
        let mut sent = request(Method::GET, "/api/v1/configmaps");
        let accept = HeaderValue::from_static(encoding.content_type());
        sent.headers_mut().insert(header::ACCEPT, accept);
        let pending = client.send(sent);
        let body = upstream.call().await.stream(200, &[("content-type", encoding.content_type())]);
        let (head, end) = around(encoding);
        let writes = async {
            body.send(head).await;
            let mut piece = Vec::new();
            for at in 0..OBJECTS {
                piece.extend(item(encoding, at));
                if piece.len() > 60_000 {
                    body.send(std::mem::take(&mut piece)).await;
                }
            }
            body.send([piece, end].concat()).await;
            body.end();
        };
        let reads = async {
            let mut response = pending.await.unwrap();
            let (mut kept, mut others, mut total) = (0, 0, 0);
            let mut rest = Vec::new();
            while let Some(bytes) = soon("the list", chunk(&mut response)).await {
                let bytes = bytes.unwrap();
                total += bytes.len();
                rest.extend(bytes);
                kept += memchr::memmem::find_iter(&rest, b"even-a").count();
                others += memchr::memmem::find_iter(&rest, b"odd-a").count();
                // A name that is cut in two is found with the next chunk.
                let last = rest.len().saturating_sub(5);
                rest.drain(..last);
            }
            (kept, others, total)
        };
        let ((), (kept, others, total)) = tokio::join!(writes, reads);
        assert_eq!((kept, others), (OBJECTS / 2, 0), "{encoding:?}");
        let peak = peak(&process);
        println!("{encoding:?}: {total} bytes through a process of {peak} KiB");
        assert!(peak <= LIMIT_KIB, "{encoding:?}: {peak} KiB");
    }
}

#[tokio::test]
async fn t74_what_the_clients_of_many_connections_leave_unread_fits_the_container() {
    // One thread's share of the container's 256 MiB: each thread keeps what it had at its peak.
    const LIMIT_KIB: usize = 192 << 10;
    let mut upstream = Upstream::start().await;
    let files = Files::new(&upstream.ca.pem);
    let mut args = flags(&files, &upstream.addr.to_string());
    args.push("--threads=1".into());
    let process = Process::start(&args).await;
    let event = format!("{{\"type\":\"ADDED\",\"object\":\"{}\"}}\n", "x".repeat(16 << 10));
    let (mut clients, mut held, mut floods) = (Vec::new(), Vec::new(), JoinSet::new());
    for _ in 0..5 {
        let trust = config(&files.mesh_ca_pem(), &[H2]);
        let tls = connect(process.addr, trust, "kubernetes").await.unwrap();
        let mut client = Client::over(tls, Http::Two, 1 << 10).await;
        for _ in 0..120 {
            let pending = client.send(request(Method::GET, "/api/v1/pods?watch=1"));
            let events = upstream.call().await.watch();
            floods.spawn(events.flood(Bytes::from(event.clone()), Arc::default()));
            held.push(pending.await.unwrap());
        }
        clients.push(client);
    }
    let metrics = || async { scrape::page(process.admin, "/metrics").await.1 };
    let watches = |page: &String| scrape::sample(page, "ctrlmesh_streams", &[]);
    until("unread watches", metrics, |page| watches(page) <= 48.0).await;
    let peak = peak(&process);
    println!("600 unread watches: {peak} KiB");
    assert!(peak <= LIMIT_KIB, "{peak} KiB");
}
