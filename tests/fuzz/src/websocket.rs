//! WebSocket: what a client sends, and the frames of a watch.

use ctrlmesh::wire::{
    Encoding,
    websocket::{ClientFrames, Events, Heard},
};

use crate::splits::splits;

/// Any split is heard the same, and gives the same frames, which have the whole events.
pub(crate) fn both_ways(input: &[u8]) {
    let heard = hear(&[input]);
    let sent = [Encoding::Json, Encoding::Protobuf].map(|encoding| send(encoding, &[input]));
    for chunks in splits(input) {
        assert_eq!(hear(&chunks), heard, "in {} chunks", chunks.len());
        let again = [Encoding::Json, Encoding::Protobuf].map(|encoding| send(encoding, &chunks));
        assert_eq!(again, sent, "in {} chunks", chunks.len());
    }
    let [lines, messages] = sent;
    let told: Vec<_> = input.split_inclusive(|byte| *byte == b'\n').collect();
    let told: Vec<_> =
        told.into_iter().filter(|line| line.len() > 1 && line.ends_with(b"\n")).collect();
    assert_eq!(payloads(&lines, 0x81), told);
    assert_eq!(payloads(&messages, 0x82), prefixed(input));
}

/// What a client is heard to say, up to its end.
fn hear(chunks: &[&[u8]]) -> Vec<Heard> {
    let mut client = ClientFrames::default();
    let mut all = Vec::new();
    for chunk in chunks {
        let mut rest = *chunk;
        while let Some(heard) = client.next(&mut rest) {
            match &heard {
                Heard::Ping(payload) => assert!(payload.len() <= 125, "RFC 6455 section 5.5"),
                Heard::Close | Heard::Unmasked => {
                    all.push(heard);
                    return all;
                }
            }
            all.push(heard);
        }
        assert!(rest.is_empty(), "all is taken");
    }
    all
}

fn send(encoding: Encoding, chunks: &[&[u8]]) -> Vec<u8> {
    let mut events = Events::new(encoding).expect("it is one of the two");
    let mut out = Vec::new();
    for chunk in chunks {
        events.feed(chunk, &mut out);
    }
    out
}

/// The payloads of a server's frames, which are all of one kind.
fn payloads(mut bytes: &[u8], first: u8) -> Vec<&[u8]> {
    let mut payloads = Vec::new();
    while let [kind, length, rest @ ..] = bytes {
        assert_eq!(*kind, first);
        let (length, rest) = match (length, rest) {
            (126, [a, b, rest @ ..]) => (u64::from(u16::from_be_bytes([*a, *b])), rest),
            (127, [a, b, c, d, e, f, g, h, rest @ ..]) => {
                (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest)
            }
            (length, rest) => (u64::from(*length), rest),
        };
        let (payload, rest) = rest.split_at(length.try_into().unwrap());
        payloads.push(payload);
        bytes = rest;
    }
    assert!(bytes.is_empty());
    payloads
}

/// The whole messages behind lengths of four bytes.
fn prefixed(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
        let Some((message, rest)) = rest.split_at_checked(length) else { break };
        messages.push(message);
        bytes = rest;
    }
    messages
}
