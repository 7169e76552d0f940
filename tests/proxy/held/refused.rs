//! Refusals of requests whose body is still to come, over HTTP/1.1, where the next request comes
//! behind it.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use ctrlmesh::net::tls::HTTP_11;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::support::{
    CONFIGMAPS,
    client::{Http, config, connect},
    proxy::Proxy,
    soon, stand_still,
    upstream::Upstream,
};

/// A client that writes all of its request before it reads.
struct Writer(BufReader<TlsStream<TcpStream>>);

impl Writer {
    async fn new(proxy: &Proxy) -> Self {
        let trust = config(&proxy.files.mesh_ca_pem(), &[HTTP_11]);
        Self(BufReader::new(connect(proxy.addr, trust, "kubernetes").await.unwrap()))
    }

    /// Code and body of the response.
    async fn post(
        &mut self,
        target: &str,
        headers: &str,
        body: &[u8],
    ) -> io::Result<(u16, String)> {
        let length = body.len();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: kubernetes\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n"
        );
        self.0.write_all(head.as_bytes()).await?;
        self.0.write_all(body).await?;
        self.0.flush().await?;
        self.answer().await
    }

    async fn answer(&mut self) -> io::Result<(u16, String)> {
        let mut code = 0;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                Some(_) => {}
                None if line == "\r\n" => break,
                None => code = line.split(' ').nth(1).unwrap().parse().unwrap(),
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        Ok((code, String::from_utf8(body).unwrap()))
    }
}

/// A path that is refused whatever the body.
const BAD: &str = "/api//v1";

#[tokio::test]
async fn bad_a_refusal_reaches_clients_that_write_all_before_they_read() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let body = vec![b' '; 3_000_000];
    let long = vec![b' '; 5_000_000];
    let mut failed = Vec::new();
    for n in 0..20 {
        for (target, body, expected) in [(BAD, &body, 400), (CONFIGMAPS, &long, 413)] {
            let mut client = Writer::new(&proxy).await;
            match soon("the answer", client.post(target, "", body)).await {
                Ok((code, told)) => {
                    assert_eq!(code, expected);
                    assert!(told.contains("ctrlmesh: "), "{told}");
                }
                Err(error) => failed.push(format!("{n} {target}: {error}")),
            }
        }
    }
    assert_eq!(failed, Vec::<String>::new());
    assert!(upstream.is_quiet());
}

/// It reads once it can write no more. A connection that is closed would be reset before.
#[tokio::test]
async fn bad_a_refusal_reaches_a_client_whose_body_never_ends() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let Writer(mut client) = Writer::new(&proxy).await;
    let head =
        format!("POST {BAD} HTTP/1.1\r\nHost: kubernetes\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let (reader, mut writer) = tokio::io::split(client);
    let (chunk, taken) = (format!("4000\r\n{:16384}\r\n", ""), AtomicUsize::default());
    let flood = async {
        while writer.write_all(chunk.as_bytes()).await.is_ok() {
            taken.fetch_add(chunk.len(), SeqCst);
        }
    };
    tokio::select! {
        () = stand_still(&taken) => {}
        () = flood => panic!("the connection is closed after {taken:?} bytes"),
    }
    let (code, told) = Writer(reader.unsplit(writer)).answer().await.unwrap();
    assert!(code == 400 && told.contains("ctrlmesh: "), "{code} {told}");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_refusal() {
    let upstream = Upstream::speaking(Http::One).await;
    let proxy = Proxy::start(&upstream).await;
    let body = vec![b' '; 200_000];
    let mut client = Writer::new(&proxy).await;
    for n in 0..20 {
        let answer = soon("the answer", client.post(BAD, "", &body)).await;
        assert_eq!(answer.unwrap_or_else(|error| panic!("{n}: {error}")).0, 400);
    }
    assert_eq!(upstream.accepted(), 1);
}

/// A client that waits for a `100 Continue` never sends its body.
#[tokio::test]
async fn a_refused_client_that_expects_to_go_on_is_told_at_once() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut client = Writer::new(&proxy).await;
    let head = format!(
        "POST {BAD} HTTP/1.1\r\nHost: kubernetes\r\nContent-Length: 100\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    client.0.write_all(head.as_bytes()).await.unwrap();
    client.0.flush().await.unwrap();
    assert_eq!(soon("the answer", client.answer()).await.unwrap().0, 400);
    let mut rest = Vec::new();
    let _ = soon("the close", client.0.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn a_refused_body_without_an_end_ends_its_connection() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut client = Writer::new(&proxy).await;
    let head = format!("POST {BAD} HTTP/1.1\r\nHost: kubernetes\r\nContent-Length: 100\r\n\r\n{{");
    client.0.write_all(head.as_bytes()).await.unwrap();
    client.0.flush().await.unwrap();
    assert_eq!(soon("the answer", client.answer()).await.unwrap().0, 400);
    let mut rest = Vec::new();
    soon("the close", client.0.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"");
    upstream.open_connections(0).await;
}

/// A body that comes fast is not read for as long as a slow one.
#[tokio::test]
async fn a_refused_body_of_a_gibibyte_ends_its_connection_after_16_mib() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream).await;
    let mut client = Writer::new(&proxy).await;
    let head =
        format!("POST {BAD} HTTP/1.1\r\nHost: kubernetes\r\nContent-Length: {}\r\n\r\n", 1 << 30);
    client.0.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b' '; 64 << 10];
    let mut written = 0;
    let write = async {
        while client.0.write_all(&piece).await.is_ok() && client.0.flush().await.is_ok() {
            written += piece.len();
        }
    };
    soon("the end", write).await;
    // Buffers of the sockets hold some more.
    assert!((16 << 20..48 << 20).contains(&written), "{written} bytes");
}
