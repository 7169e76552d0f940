//! Watches, byte by byte as someone might send them.

use ctrlmesh::wire::{
    Encoding, ResourceVersion,
    frames::{EventKind, Fault, Verdict, WatchFilter},
    object::Object,
};

use crate::{
    readers::{
        cbor, protobuf,
        tree::{self, Node, Refused, Told},
    },
    splits::{Seen, splits},
};

/// An event as a filter told it: its kind, its position, and whether it left.
type Judged = (EventKind, ResourceVersion, bool);

/// What a filter did.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    events: Vec<Judged>,
    fault: Option<Fault>,
    left: Vec<u8>,
    seen: Vec<Seen>,
    is_between: bool,
    bookmark: Option<Vec<u8>>,
}

fn run(encoding: Encoding, chunks: &[&[u8]]) -> Outcome {
    let mut filter = WatchFilter::new(encoding).expect("a stream");
    let (mut events, mut left, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let mut fault = None;
    let mut judge = |object: &Object<'_>| {
        let one = Seen::new(object);
        let verdict = one.verdict();
        seen.push(one);
        verdict
    };
    'all: for chunk in chunks {
        let mut rest = *chunk;
        loop {
            // What has left cannot be taken back.
            let mut out = Vec::new();
            let passed = filter.next(rest, &mut judge, &mut out);
            left.append(&mut out);
            match passed {
                Ok(Some(passed)) => {
                    events.push((passed.event.kind, passed.event.resource_version, passed.is_kept));
                    rest = &rest[passed.at..];
                }
                Ok(None) => break,
                Err(error) => {
                    fault = Some(error.fault);
                    assert_eq!(filter.next(b"", &mut judge, &mut left), Err(error), "for ever");
                    break 'all;
                }
            }
        }
    }
    let is_between = filter.is_between();
    Outcome { events, fault, left, seen, is_between, bookmark: filter.take_bookmark() }
}

/// Any split gives the same; what the encoding's plain decoder reads is filtered as it says.
pub(crate) fn filter(encoding: Encoding, body: &[u8]) {
    let whole = run(encoding, &[body]);
    for chunks in splits(body) {
        assert_eq!(run(encoding, &chunks), whole, "in {} chunks", chunks.len());
    }
    let told: Option<Vec<(&[u8], Option<Told>)>> = match encoding {
        Encoding::Json => tree::jsons(body).and_then(|all| {
            if all.iter().any(|node| tree::event(node).object.is_ok_and(|seen| seen.is_table())) {
                check_rows(&whole);
                return None;
            }
            Some(all.iter().map(one).collect())
        }),
        Encoding::Cbor => cbor::sequence(body).map(|all| all.iter().map(one).collect()),
        _ => protobuf::stream(body)
            .map(|all| all.into_iter().map(|frame| (frame.raw, frame.told)).collect()),
    };
    if let Some(told) = told {
        check(encoding, told, &whole);
    }
}

/// A document and what it tells; nothing if it is no event.
fn one<'a>(node: &Node<'a>) -> (&'a [u8], Option<Told>) {
    (node.raw, node.is_map().then(|| tree::event(node)))
}

const fn is_change(kind: EventKind) -> bool {
    matches!(kind, EventKind::Added | EventKind::Modified | EventKind::Deleted)
}

fn check(encoding: Encoding, told: Vec<(&[u8], Option<Told>)>, whole: &Outcome) {
    let (mut left, mut seen, mut events) = (Vec::new(), Vec::new(), Vec::new());
    let (mut fault, mut is_whole) = (None, true);
    for (raw, told) in told {
        // Bytes that are no event end the stream, for one reason or another.
        let Some(Told { kind, version, object }) = told else {
            // A number that is cut off by the end of its message is known by the byte behind it.
            fault = whole.fault;
            assert!(fault.is_some() || !whole.is_between, "passed what is no event");
            is_whole = false;
            break;
        };
        if kind == EventKind::Unknown {
            fault = Some(Fault::Event);
            break;
        }
        // In the binary encodings no one asks for Tables.
        let is_table = object.as_ref().is_ok_and(Seen::is_table);
        let verdict = match object {
            _ if is_table => Verdict::Unknown,
            _ if !is_change(kind) => Verdict::Keep,
            Ok(object) => {
                let verdict = object.verdict();
                seen.push(object);
                verdict
            }
            Err(Refused) => Verdict::Unknown,
        };
        match verdict {
            Verdict::Unknown => {
                fault = Some(Fault::Item);
                break;
            }
            Verdict::Drop => events.push((kind, version, false)),
            Verdict::Keep => {
                events.push((kind, version, true));
                left.extend_from_slice(raw);
                if encoding == Encoding::Json {
                    left.push(b'\n');
                }
            }
        }
    }
    assert_eq!(whole.fault, fault);
    assert_eq!(whole.events, events);
    assert_eq!(whole.seen, seen);
    assert_eq!(whole.left, left);
    assert_eq!(whole.is_between, is_whole && fault.is_none());
}

/// No row that is dropped has left.
fn check_rows(whole: &Outcome) {
    let all = tree::jsons(&whole.left).expect("what left is well-formed");
    for node in &all {
        let Told { kind, object, .. } = tree::event(node);
        if !is_change(kind) || !object.is_ok_and(|object| object.is_table()) {
            continue;
        }
        for row in tree::rows(node) {
            if let Ok(seen) = row.row() {
                assert_eq!(seen.verdict(), Verdict::Keep);
            }
        }
    }
}
