//! Watches over WebSocket, byte by byte: what the API server answers straight, and through the proxy.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ctrlmesh_e2e::Proxy;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::direct::bed::{Bed, LIMIT, Way, config_maps};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// The selector that is the shard.
const NATIVE: &str = "labelSelector=team+in+(a)";
/// The usual handshake. A header that is given again replaces its own.
const HANDSHAKE: [(&str, &str); 5] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
    ("Origin", "https://kubernetes"),
];

/// The rest of a query, headers that are not the usual, and the code of the answer.
type Handshake<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

/// A frame of the server: its first byte and its payload.
pub(super) type Frame = (u8, Vec<u8>);

/// A client's end.
pub(super) struct Socket {
    pub(super) stream: TlsStream<TcpStream>,
    /// The status and the headers.
    head: String,
}

impl Socket {
    /// Sends a handshake and reads the head of the answer.
    pub(super) async fn open(
        bed: &Bed,
        way: &Way<'_>,
        query: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self> {
        let url = way.url(bed);
        let address: SocketAddr = url.trim_start_matches("https://").parse()?;
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_file_iter(way.ca(bed))? {
            roots.add(ca?)?;
        }
        let config = ClientConfig::builder_with_provider(ctrlmesh::net::tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tcp = TcpStream::connect(address).await?;
        let name = ServerName::from(address.ip());
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        // The native selector is the shard's own. The proxy adds it to requests without one.
        let native = match way {
            Way::Straight => format!("&{NATIVE}"),
            Way::Through(_) => String::new(),
        };
        let bearer = format!("Bearer {}", bed.token());
        let mut all = vec![("Host", "kubernetes"), ("Authorization", &*bearer)];
        all.extend(HANDSHAKE);
        all.retain(|(name, _)| headers.iter().all(|(other, _)| name != other));
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        let path = bed.path("configmaps");
        let mut request = format!("GET {path}?watch=1{query}{native} HTTP/1.1\r\n");
        for (name, value) in all {
            request += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{request}\r\n").as_bytes()).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.context("the head of an answer")?);
        }
        Ok(Self { stream, head: String::from_utf8(head)? })
    }

    pub(super) fn code(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub(super) async fn frame(&mut self) -> Result<Frame> {
        let read = async {
            let first = self.stream.read_u8().await?;
            let length = match self.stream.read_u8().await? {
                127 => self.stream.read_u64().await?,
                126 => self.stream.read_u16().await?.into(),
                length => length.into(),
            };
            let mut payload = vec![0; usize::try_from(length)?];
            self.stream.read_exact(&mut payload).await?;
            Ok((first, payload))
        };
        timeout(LIMIT, read).await.context("a frame in time")?
    }

    /// The first close. Reads to the end of the connection: the API server closes twice after an
    /// unmasked frame.
    async fn end(&mut self) -> Result<Frame> {
        loop {
            let frame = self.frame().await?;
            if frame.0 == 0x88 {
                let mut rest = Vec::new();
                let read = self.stream.read_to_end(&mut rest);
                // Go closes TCP without a word of TLS.
                let _ =
                    timeout(Duration::from_secs(10), read).await.context("FIN after the close")?;
                return Ok(frame);
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }
}

/// A frame of a client, with a mask that changes nothing.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap_or_default();
    [&[first, 0x80 | length, 0, 0, 0, 0], payload].concat()
}

fn three(name: &str) -> Result<(Bed, Proxy)> {
    let bed = Bed::new(name)?;
    for (name, labels) in [("mine", "team=a"), ("theirs", "team=b"), ("too", "team=a")] {
        bed.config_map(name, labels)?;
    }
    let proxy = bed.proxy(&["a"])?;
    Ok((bed, proxy))
}

pub(super) fn run<T>(test: impl Future<Output = Result<T>>) -> Result<T> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(test)
}

#[test]
fn a_watch_over_websocket_has_the_frames_of_the_api_server() -> Result<()> {
    let (bed, proxy) = three("websocket_frames")?;
    let large = "x".repeat(400_000);
    let object = serde_json::json!({
        "metadata": { "name": "large", "labels": { "team": "a" } }, "data": { "large": large },
    });
    bed.api.client().post(&bed.path("configmaps"), &object)?.json()?;
    run(async {
        for accept in ["application/json", PROTOBUF, "application/json;as=Table;v=v1;g=meta.k8s.io"]
        {
            let mut sockets = Vec::new();
            for way in [Way::Straight, Way::Through(&proxy)] {
                let socket = Socket::open(&bed, &way, "", &[("Accept", accept)]).await?;
                ensure!(socket.code() == "101", "{accept}: {}", socket.head);
                ensure!(!socket.head.contains("Content-Type"), "{}", socket.head);
                sockets.push(socket);
            }
            for _ in 0..3 {
                let (straight, through) = (sockets[0].frame().await?, sockets[1].frame().await?);
                ensure!(straight == through, "{accept}: {straight:?} {through:?}");
            }
            for socket in &mut sockets {
                socket.send(&masked(0x81, b"ignored")).await?;
                socket.send(&masked(0x89, b"hello")).await?;
                ensure!(socket.frame().await? == (0x8A, b"hello".to_vec()));
                socket.send(&masked(0x88, &1000_u16.to_be_bytes())).await?;
            }
            let (straight, through) = (sockets[0].end().await?, sockets[1].end().await?);
            ensure!(straight == through, "{straight:?} {through:?}");
        }
        Ok(())
    })
}

#[test]
fn handshakes_and_ends_are_answered_as_by_the_api_server() -> Result<()> {
    let (bed, proxy) = three("websocket_ends")?;
    let prefix = "base64url.bearer.authorization.k8s.io.";
    let good = format!("{prefix}{}", BASE64_URL_SAFE_NO_PAD.encode(bed.token()));
    let (good_and_other, bad_and_other) = (format!("{good}, other"), format!("{prefix}!, other"));
    let wrong = format!("{prefix}{}, other", BASE64_URL_SAFE_NO_PAD.encode("nobody"));
    let protocols = "Sec-WebSocket-Protocol";
    let handshakes: [Handshake<'_>; 17] = [
        ("", &[("Sec-WebSocket-Key", "")], "400"),
        ("", &[("Sec-WebSocket-Version", "")], "400"),
        ("", &[("Sec-WebSocket-Version", "8")], "400"),
        ("", &[("Origin", "")], "403"),
        ("", &[("Origin", "null")], "403"),
        ("", &[(protocols, "one, two")], "400"),
        ("", &[(protocols, "one")], "101"),
        ("", &[(protocols, &good_and_other)], "400"),
        ("", &[("Authorization", ""), (protocols, &good_and_other)], "101"),
        ("", &[("Authorization", ""), (protocols, &good)], "401"),
        ("", &[("Authorization", ""), (protocols, &bad_and_other)], "401"),
        ("", &[("Authorization", ""), (protocols, &wrong)], "401"),
        ("", &[("Authorization", "Bearer nobody")], "401"),
        ("", &[("Accept", "application/yaml")], "406"),
        ("&fieldSelector=nothing%3Dx", &[], "400"),
        ("", &[("Upgrade", "h2c")], "200"),
        ("", &[("Connection", "")], "200"),
    ];
    let unmasked: &[u8] = &[0x81, 0x02, b'h', b'i'];
    let announced = [&[0x82, 0xFF][..], &100_000_000_u64.to_be_bytes(), &[0; 4]].concat();
    run(async {
        for way in [Way::Straight, Way::Through(&proxy)] {
            let who = if matches!(way, Way::Straight) { "straight" } else { "through" };
            for (query, headers, code) in handshakes {
                let socket = Socket::open(&bed, &way, query, headers).await?;
                ensure!(socket.code() == code, "{who} {query} {headers:?}: {}", socket.head);
                if code == "101" {
                    let echoed = if headers.len() == 1 { "one" } else { "other" };
                    let line = format!("sec-websocket-protocol: {echoed}\r\n");
                    ensure!(socket.head.to_lowercase().contains(&line), "{who}: {}", socket.head);
                }
            }
            for (sent, code) in
                [(unmasked, 1002_u16), (&masked(0x88, b""), 1000), (&announced, 1000)]
            {
                let mut socket = Socket::open(&bed, &way, "", &[]).await?;
                socket.send(sent).await?;
                ensure!(socket.end().await?.1 == code.to_be_bytes(), "{who} {sent:x?}");
            }
            let began = Instant::now();
            let mut socket = Socket::open(&bed, &way, "&timeoutSeconds=1", &[]).await?;
            ensure!(socket.end().await?.1 == 1000_u16.to_be_bytes(), "{who}: its time is over");
            ensure!(began.elapsed() < Duration::from_secs(20), "{who}: {:?}", began.elapsed());
        }
        Ok(())
    })
}

#[test]
fn a_boundary_that_moves_is_told_over_websocket() -> Result<()> {
    let (bed, proxy) = three("websocket_moves")?;
    // As fabric8 asks: it lists over another connection.
    let list = Way::Through(&proxy).client(&bed)?.get(&bed.path("configmaps"))?.json()?;
    let at = list["metadata"]["resourceVersion"].as_str().context("a list's position")?;
    run(async {
        let query = format!("&allowWatchBookmarks=true&resourceVersion={at}");
        let mut socket = Socket::open(&bed, &Way::Through(&proxy), &query, &[]).await?;
        ensure!(socket.code() == "101", "{}", socket.head);
        proxy.change_policy(&config_maps(&["b"]))?;
        let mut told = Vec::new();
        while told.len() < 4 {
            let (_, event) = socket.frame().await?;
            let event: Value = serde_json::from_slice(&event)?;
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            match event["type"].as_str() {
                Some("ERROR") | None => bail!("{event}"),
                Some(kind) => told.push(format!("{kind} {name}")),
            }
        }
        told[..2].sort();
        ensure!(told == ["DELETED mine", "DELETED too", "ADDED theirs", "BOOKMARK "], "{told:?}");
        bed.relabel("mine", Some("b"))?;
        let (_, event) = socket.frame().await?;
        let event: Value = serde_json::from_slice(&event)?;
        ensure!(
            (&event["type"], &event["object"]["metadata"]["name"])
                == (&"ADDED".into(), &"mine".into()),
            "{event}"
        );
        Ok(())
    })
}
