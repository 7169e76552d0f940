//! Every encoding that the API server has, in lists, watches and refusals.

use std::{
    io::Read,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use ciborium::Value as Cbor;
use ctrlmesh_e2e::{Proxy, until};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way, config_maps, output};

const CBOR: &str = "application/cbor";
const CBOR_SEQ: &str = "application/cbor-seq";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const LIST_METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

fn three(name: &str) -> Result<(Bed, Proxy)> {
    let bed = Bed::new(name)?;
    for (name, labels) in [("mine", "team=a"), ("theirs", "team=b"), ("nobodys", "")] {
        bed.config_map(name, labels)?;
    }
    let proxy = bed.proxy(&["a"])?;
    Ok((bed, proxy))
}

fn accepting(bed: &Bed, way: &Way<'_>, accept: &str, query: &str) -> Command {
    let mut curl = bed.curl(way, &format!("{}{query}", bed.path("configmaps")));
    curl.args(["-N", "-H", &format!("Accept: {accept}")]);
    curl
}

fn shows_mine_alone(body: &[u8]) -> bool {
    let has = |name: &str| body.windows(name.len()).any(|at| at == name.as_bytes());
    has("mine") && !has("theirs") && !has("nobodys")
}

#[test]
fn lists_in_every_encoding_are_those_of_a_native_selector() -> Result<()> {
    let (bed, proxy) = three("list_encodings")?;
    for accept in ["application/json", "application/yaml", PROTOBUF, CBOR, TABLE, LIST_METADATA] {
        for compression in [false, true] {
            let body = |way: &Way<'_>, query: &str| {
                let mut curl = accepting(&bed, way, accept, query);
                if compression {
                    curl.arg("--compressed");
                }
                output(&mut curl)
            };
            let through = body(&Way::Through(&proxy), "")?;
            ensure!(shows_mine_alone(&through), "{accept}");
            let native = body(&Way::Straight, "?labelSelector=team+in+(a)")?;
            // The list's own position and the objects' age move on meanwhile.
            let objects = |body: &[u8]| -> Result<Vec<u8>> {
                // The API server writes the fields of CBOR in any order.
                let is_cbor = accept == CBOR;
                let text = is_cbor.then(|| ciborium::from_reader(body).map(json)).transpose()?;
                Ok(without_numbers(
                    text.map(|value| value.to_string()).as_deref().map_or(body, str::as_bytes),
                ))
            };
            ensure!(objects(&through)? == objects(&native)?, "{accept}");
        }
    }
    Ok(())
}

/// What the API server means by CBOR: its texts are byte strings, its whole is tagged.
fn json(cbor: Cbor) -> Value {
    match cbor {
        Cbor::Tag(_, inner) => json(*inner),
        Cbor::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        Cbor::Text(text) => text.into(),
        Cbor::Bool(value) => value.into(),
        Cbor::Integer(value) => i64::try_from(value).unwrap_or_default().into(),
        Cbor::Array(items) => items.into_iter().map(json).collect::<Vec<_>>().into(),
        Cbor::Map(fields) => {
            let key = |key| json(key).as_str().unwrap_or_default().to_owned();
            fields
                .into_iter()
                .map(|(k, v)| (key(k), json(v)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        _ => Value::Null,
    }
}

/// The bytes without their digits: a Table tells how many seconds old an object is.
fn without_numbers(body: &[u8]) -> Vec<u8> {
    body.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect()
}

/// A watch by curl that is read as it comes.
struct Stream {
    curl: std::process::Child,
}

impl Stream {
    fn start(mut curl: Command) -> Result<Self> {
        Ok(Self { curl: curl.stdout(Stdio::piped()).spawn()? })
    }

    fn body(&mut self) -> Result<&mut impl Read> {
        self.curl.stdout.as_mut().context("the pipe just asked for")
    }

    /// Reads until the stream holds `text`; all of it.
    fn read_to(&mut self, text: &str) -> Result<Vec<u8>> {
        self.read_through(&[text])
    }

    /// Reads until the stream holds these texts, one behind the other; all of it.
    fn read_through(&mut self, texts: &[&str]) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut chunk = [0; 4096];
        let behind = |rest: &[u8], text: &&str| {
            let at = rest.windows(text.len()).position(|at| at == text.as_bytes())?;
            Some(at + text.len())
        };
        let has_all = |all: &[u8]| {
            texts.iter().try_fold(0, |at, text| Some(at + behind(&all[at..], text)?)).is_some()
        };
        while !has_all(&all) {
            match self.body()?.read(&mut chunk)? {
                0 => bail!("the stream ended before {texts:?}: {}", String::from_utf8_lossy(&all)),
                length => all.extend_from_slice(&chunk[..length]),
            }
        }
        Ok(all)
    }

    /// Reads to the end, which must be a clean one.
    fn read_rest(mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.body()?.read_to_end(&mut all)?;
        let status = self.curl.wait()?;
        ensure!(status.success(), "curl: {status}: the stream was cut off");
        Ok(all)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

const WATCH_LIST: &str =
    "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

/// What a watch asks for, and what it gets.
const KINDS: [(&str, &str); 5] = [
    ("application/json", "application/json"),
    (PROTOBUF_STREAM, PROTOBUF),
    (CBOR, CBOR_SEQ),
    (METADATA, "application/json"),
    (TABLE, "application/json"),
];

/// A watch of each kind, each with all that is in the shard.
fn live(bed: &Bed, proxy: &Proxy) -> Result<Vec<Stream>> {
    let mut streams = Vec::new();
    for (accept, _) in KINDS {
        let mut stream = Stream::start(accepting(bed, &Way::Through(proxy), accept, WATCH_LIST))?;
        let start = stream.read_to("initial-events-end")?;
        ensure!(shows_mine_alone(&start), "{accept}: {}", String::from_utf8_lossy(&start));
        streams.push(stream);
    }
    until("all are listed as live", LIMIT, || {
        let text = proxy.admin_text("/debug/streams")?;
        let listed: Value = serde_json::from_str(&text)?;
        Ok((listed["streams"].as_array().context("a list")?.len() == KINDS.len()).then_some(()))
    })?;
    Ok(streams)
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|at| at == text.as_bytes())
}

fn ends_expired(accept: &str, kind: &str, stream: Stream) -> Result<()> {
    let rest = stream.read_rest()?;
    let (what, code) = last_event(kind, &rest).with_context(|| {
        format!("{accept}: the last event of {}", String::from_utf8_lossy(&rest))
    })?;
    ensure!(what == "ERROR" && code == 410, "{accept}: {what} {code}");
    Ok(())
}

#[test]
fn watches_in_every_encoding_show_the_shards_own_and_expire_in_it() -> Result<()> {
    let (bed, _) = three("watch_encodings")?;
    let builder = Proxy::builder("mine", &config_maps(&["a"])).flag("--on-change=expire");
    let proxy = builder.start(&bed.api)?;
    let mut streams = live(&bed, &proxy)?;
    bed.relabel("theirs", Some("a"))?;
    for ((accept, _), stream) in KINDS.iter().zip(&mut streams) {
        let moved = stream.read_to("theirs")?;
        ensure!(has(&moved, "ADDED"), "{accept}");
    }
    proxy.change_policy(&config_maps(&["b"]))?;
    for ((accept, kind), stream) in KINDS.into_iter().zip(streams) {
        ends_expired(accept, kind, stream)?;
    }
    Ok(())
}

#[test]
fn t13_t14_watches_in_every_encoding_are_brought_over_in_it() -> Result<()> {
    let (bed, proxy) = three("change_encodings")?;
    let streams = live(&bed, &proxy)?;
    proxy.change_policy(&config_maps(&["b"]))?;
    let mut brought_over = Vec::new();
    for ((accept, kind), mut stream) in KINDS.into_iter().zip(streams) {
        if accept == TABLE {
            // A row is no object that could be told by itself.
            ends_expired(accept, kind, stream)?;
            continue;
        }
        // The API server may have told a position of its own just before.
        let told = stream.read_through(&["theirs", "BOOKMARK"])?;
        for text in ["DELETED", "mine", "ADDED", "theirs"] {
            ensure!(has(&told, text), "{accept}: {text} in {}", String::from_utf8_lossy(&told));
        }
        ensure!(!has(&told, "nobodys"), "{accept}");
        let of_kind = if accept == METADATA { "PartialObjectMetadata" } else { "ConfigMap" };
        ensure!(has(&told, of_kind), "{accept}: each says its kind");
        brought_over.push((accept, stream));
    }
    bed.config_map("later", "team=b")?;
    for (accept, mut stream) in brought_over {
        stream.read_to("later").context(accept)?;
    }
    let how = proxy.metric(r#"ctrlmesh_stream_changes_total{how="difference"}"#)?;
    ensure!(how == 4.0, "{how} watches were brought over by difference");
    Ok(())
}

/// Type and code of the last event.
fn last_event(kind: &str, body: &[u8]) -> Result<(String, i64)> {
    match kind {
        CBOR_SEQ => {
            let mut rest = body;
            let mut last = None;
            while !rest.is_empty() {
                last = Some(ciborium::from_reader::<Cbor, _>(&mut rest)?);
            }
            event(&json(last.context("an event")?))
        }
        PROTOBUF => {
            // Frames of four bytes of length. A runtime.Unknown and a Status hold texts as they
            // are; 410 as a varint of field 6 is 30 9a 03.
            let mut rest = body;
            let mut last: &[u8] = &[];
            while let Some((length, tail)) = rest.split_first_chunk::<4>() {
                let length = usize::try_from(u32::from_be_bytes(*length))?;
                last = tail.get(..length).context("a whole frame")?;
                rest = &tail[length..];
            }
            ensure!(rest.is_empty(), "half a frame");
            let has = |part: &[u8]| last.windows(part.len()).any(|at| at == part);
            ensure!(has(b"k8s\0") && has(b"Status") && has(b"Expired"), "no Status");
            let kind = if has(b"ERROR") { "ERROR" } else { "other" };
            Ok((kind.to_owned(), if has(&[0x30, 0x9a, 0x03]) { 410 } else { 0 }))
        }
        _ => {
            let last = std::str::from_utf8(body)?.trim_end().lines().last().context("an event")?;
            event(&serde_json::from_str(last)?)
        }
    }
}

fn event(event: &Value) -> Result<(String, i64)> {
    let code = event["object"]["code"].as_i64().context("a code")?;
    ensure!(event["object"]["kind"] == "Status", "{event}");
    Ok((event["type"].as_str().unwrap_or_default().to_owned(), code))
}

#[test]
fn t71_refusals_are_a_status_in_the_clients_encoding() -> Result<()> {
    let (bed, proxy) = three("t71")?;
    let bad = "?labelSelector=team%3D%3D%3D";
    for accept in ["application/json", CBOR, PROTOBUF, "application/yaml", TABLE] {
        let through = output(&mut accepting(&bed, &Way::Through(&proxy), accept, bad))?;
        let native = output(&mut accepting(&bed, &Way::Straight, accept, bad))?;
        let status = |body: &[u8]| -> Result<(String, i64)> {
            match accept {
                CBOR => {
                    let value = json(ciborium::from_reader(body)?);
                    Ok((value["kind"].to_string(), value["code"].as_i64().context("code")?))
                }
                PROTOBUF => {
                    let has = |part: &[u8]| body.windows(part.len()).any(|at| at == part);
                    ensure!(body.starts_with(b"k8s\0"), "no protobuf");
                    let code = if has(&[0x30, 0x90, 0x03]) { 400 } else { 0 };
                    Ok((if has(b"Status") { "\"Status\"" } else { "" }.to_owned(), code))
                }
                "application/yaml" => {
                    let text = std::str::from_utf8(body)?;
                    let code = text.lines().any(|line| line == "code: 400");
                    let kind = text.lines().any(|line| line.replace('"', "") == "kind: Status");
                    ensure!(code && kind, "{text}");
                    Ok(("\"Status\"".to_owned(), 400))
                }
                _ => {
                    let value: Value = serde_json::from_slice(body)?;
                    Ok((value["kind"].to_string(), value["code"].as_i64().context("code")?))
                }
            }
        };
        let (ours, theirs) = (status(&through).context(accept)?, status(&native).context(accept)?);
        ensure!(
            ours == theirs && ours == ("\"Status\"".to_owned(), 400),
            "{accept}: {ours:?} {theirs:?}"
        );
    }
    Ok(())
}
