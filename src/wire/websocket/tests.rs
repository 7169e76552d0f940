//! A watch over WebSocket: handshakes, events in frames, and what clients send.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    frame::{Opcode, put_frame},
    *,
};
use crate::media::Encoding;

const USUAL: [(&str, &str); 5] = [
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    // The example of RFC 6455 section 1.3.
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("sec-websocket-version", "13"),
    ("origin", "https://kubernetes"),
];

/// The usual handshake with these headers besides or instead. An empty value takes one out.
fn headers(others: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in USUAL.iter().chain(others) {
        let name = HeaderName::from_static(name);
        match *value {
            "" => drop(headers.remove(name)),
            _ if name == header::SEC_WEBSOCKET_PROTOCOL => {
                headers.append(name, HeaderValue::from_str(value).unwrap());
            }
            _ => drop(headers.insert(name, HeaderValue::from_str(value).unwrap())),
        }
    }
    headers
}

fn token(token: &[u8]) -> String {
    let token = BASE64_URL_SAFE_NO_PAD.encode(token);
    format!("base64url.bearer.authorization.k8s.io.{token}")
}

#[test]
fn a_handshake_is_taken_out_of_its_request() {
    let mut taken = headers(&[
        ("accept", "application/json"),
        ("sec-websocket-extensions", "permessage-deflate"),
        ("sec-websocket-protocol", "v4.channel.k8s.io"),
    ]);
    let reply = Offer::take(&mut taken).unwrap().accept();
    assert_eq!(reply.status(), 101);
    let said = |name| reply.headers()[name].to_str().unwrap();
    assert_eq!(said(header::SEC_WEBSOCKET_ACCEPT), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!((said(header::UPGRADE), said(header::CONNECTION)), ("websocket", "Upgrade"));
    assert_eq!(said(header::SEC_WEBSOCKET_PROTOCOL), "v4.channel.k8s.io");
    assert_eq!(reply.headers().len(), 4);
    let mut left: Vec<_> = taken.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["accept", "connection"]);

    let reply = Offer::take(&mut headers(&[])).unwrap().accept();
    assert!(!reply.headers().contains_key(header::SEC_WEBSOCKET_PROTOCOL));
}

#[test]
fn what_asks_for_websocket_is_told_as_the_api_server_does() {
    for (others, is_made) in [
        (&[][..], true),
        (&[("upgrade", "WebSocket")], true),
        (&[("connection", "keep-alive, upgrade")], true),
        (&[("upgrade", "h2c")], false),
        (&[("upgrade", "")], false),
        (&[("connection", "")], false),
        (&[("connection", "keep-alive")], false),
    ] {
        assert_eq!(Offer::is_made(&headers(others)), is_made, "{others:?}");
    }
}

#[test]
fn bad_handshakes_are_told_apart() {
    let (one, bad) = (token(b"secret"), "base64url.bearer.authorization.k8s.io.!");
    let with_other = format!("{one}, other");
    let both = format!("{one}, {one}, other");
    let bad_and_other = format!("{bad}, other");
    let not_text = format!("{}, other", token(&[0xFF]));
    let none = format!("{}, other", token(b""));
    for (others, expected) in [
        (&[("sec-websocket-key", "")][..], BadHandshake::NoKey),
        (&[("sec-websocket-version", "")], BadHandshake::Version),
        (&[("sec-websocket-version", "8")], BadHandshake::Version),
        (&[("origin", "")], BadHandshake::Origin),
        (&[("origin", "null")], BadHandshake::Origin),
        (&[("sec-websocket-protocol", "a, b")], BadHandshake::Protocols),
        (&[("sec-websocket-protocol", &one)], BadHandshake::Token),
        (&[("sec-websocket-protocol", &both)], BadHandshake::Token),
        (&[("sec-websocket-protocol", &bad_and_other)], BadHandshake::Token),
        (&[("sec-websocket-protocol", &not_text)], BadHandshake::Token),
        (&[("sec-websocket-protocol", &none)], BadHandshake::Token),
        (
            &[("sec-websocket-protocol", &with_other), ("authorization", "Bearer own")],
            BadHandshake::Protocols,
        ),
    ] {
        assert_eq!(Offer::take(&mut headers(others)), Err(expected), "{others:?}");
    }
}

#[test]
fn a_token_among_the_subprotocols_becomes_the_authorization() {
    for lines in
        [vec![format!("{}, other", token(b"secret"))], vec![token(b"secret"), "other".into()]]
    {
        let lines: Vec<_> =
            lines.iter().map(|line| ("sec-websocket-protocol", line.as_str())).collect();
        let mut taken = headers(&lines);
        let reply = Offer::take(&mut taken).unwrap().accept();
        assert_eq!(reply.headers()[header::SEC_WEBSOCKET_PROTOCOL], "other");
        assert_eq!(taken[header::AUTHORIZATION], "Bearer secret");
        assert!(taken[header::AUTHORIZATION].is_sensitive());
    }
}

/// A frame of a server, read by the rules of RFC 6455 section 5.2.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        assert_eq!(first & 0xF0, 0x80, "each is whole, and has no extension");
        let (length, rest) = match (second, rest) {
            (127, [a, b, c, d, e, f, g, h, rest @ ..]) => {
                (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest)
            }
            (126, [a, b, rest @ ..]) => (u16::from_be_bytes([*a, *b]).into(), rest),
            (length, rest) => (u64::from(*length), rest),
        };
        let minimal = match length {
            0..=125 => u8::try_from(length).unwrap(),
            126..=0xFFFF => 126,
            _ => 127,
        };
        assert_eq!(*second, minimal, "no mask, and the shortest length");
        let (payload, rest) = rest.split_at(usize::try_from(length).unwrap());
        frames.push((first & 0x0F, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    frames
}

fn cut<'a>(mut bytes: &'a [u8], at: &[Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<_> = at.iter().map(|index| index.index(bytes.len() + 1)).collect();
    at.sort_unstable();
    let mut parts = Vec::new();
    for end in at.into_iter().rev() {
        let (front, back) = bytes.split_at(end);
        parts.push(back);
        bytes = front;
    }
    parts.push(bytes);
    parts.reverse();
    parts
}

fn put(encoding: Encoding, parts: &[&[u8]], ends: bool) -> Vec<(u8, Vec<u8>)> {
    let mut events = Events::new(encoding).unwrap();
    let mut out = Vec::new();
    for part in parts {
        events.feed(part, &mut out);
    }
    if ends {
        events.end(&mut out);
    }
    frames(&out)
}

#[test]
fn frames_have_the_lengths_of_the_rfc() {
    for length in [1, 125, 126, 127, 0xFFFF, 0x1_0000, 0x2_0001] {
        let line = [vec![b'x'; length - 1], vec![b'\n']].concat();
        assert_eq!(put(Encoding::Json, &[&line], false).len(), usize::from(length > 1));
        let event = [&u32::try_from(length).unwrap().to_be_bytes()[..], &line].concat();
        assert_eq!(put(Encoding::Protobuf, &[&event], false), [(2, line)]);
    }
    let mut out = Vec::new();
    put_close(&mut out, Close::Normal);
    put_close(&mut out, Close::Protocol);
    put_pong(&mut out, b"hi");
    let closed = |code: u16| (8, code.to_be_bytes().to_vec());
    assert_eq!(frames(&out), [closed(1000), closed(1002), (10, b"hi".to_vec())]);
}

#[test]
fn an_event_that_lacks_its_end_is_sent_if_it_is_whole() {
    let sent = |text: &str| put(Encoding::Json, &[text.as_bytes()], true);
    assert_eq!(sent("{}\n{\"a\":1}"), [(1, b"{}\n".to_vec()), (1, b"{\"a\":1}\n".to_vec())]);
    assert_eq!(sent("{}\n{\"a\":1"), [(1, b"{}\n".to_vec())]);
    assert_eq!(sent("{}\n\n"), [(1, b"{}\n".to_vec())]);
    assert_eq!(put(Encoding::Protobuf, &[&[0, 0, 0, 2, 1]], true), []);
    for none in [Encoding::Yaml, Encoding::Cbor] {
        assert!(Events::new(none).is_none());
    }
}

/// A frame of a client.
fn client_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xFA, 0x21, 0x3D];
    let mut frame = Vec::new();
    put_frame(&mut frame, Opcode::Text, &[payload]);
    frame[0] = first;
    frame[1] |= 0x80;
    let at = frame.len() - payload.len();
    frame.splice(at..at, mask);
    for (byte, mask) in frame[at + 4..].iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
    frame
}

fn heard(parts: &[&[u8]]) -> Vec<Heard> {
    let mut client = ClientFrames::default();
    let mut heard = Vec::new();
    for mut part in parts.iter().copied() {
        while let Some(one) = client.next(&mut part) {
            let is_end = !matches!(one, Heard::Ping(_));
            heard.push(one);
            if is_end {
                return heard;
            }
        }
        assert!(part.is_empty());
    }
    heard
}

#[test]
fn a_clients_frames_are_heard_as_by_the_api_server() {
    // Text, fragments, reserved bits, an unknown opcode, a pong: none matters.
    for first in [0x81, 0x01, 0x00, 0x80, 0xC1, 0x83, 0x8A, 0x8B] {
        for length in [0, 1, 125, 126, 0x1_0000] {
            let frames =
                [client_frame(first, &vec![7; length]), client_frame(0x89, b"hi")].concat();
            assert_eq!(heard(&[&frames]), [Heard::Ping(b"hi".to_vec())], "{first:x} {length}");
        }
    }
    let long = [client_frame(0x89, &[9; 200]), client_frame(0x89, b"")].concat();
    assert_eq!(heard(&[&long]), [Heard::Ping(vec![9; 125]), Heard::Ping(Vec::new())]);
    for close in [client_frame(0x88, b""), client_frame(0x88, &4001_u16.to_be_bytes())] {
        assert_eq!(heard(&[&close]), [Heard::Close]);
    }
    assert_eq!(heard(&[&[0x81, 0x02, b'h', b'i']]), [Heard::Unmasked]);
    assert_eq!(heard(&[&[0x89]]), []);
    for (length, expected) in [(32_u64 << 20, None), ((32 << 20) + 1, Some(Heard::Close))] {
        let announced = [&[0x82, 0xFF][..], &length.to_be_bytes(), &[0; 4]].concat();
        assert_eq!(heard(&[&announced]), Vec::from_iter(expected));
    }
    let most = [&[0x82, 0xFF][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    assert_eq!(heard(&[&most]), [Heard::Close]);
}

proptest! {
    #[test]
    fn each_event_is_one_frame_wherever_the_body_is_cut(
        lines in vec("[^\n]{1,300}", 0..8),
        messages in vec(vec(any::<u8>(), 0..300), 0..8),
        at in vec(any::<Index>(), 0..12),
    ) {
        let body = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let expected = lines.iter().map(|line| (1, format!("{line}\n").into_bytes()));
        let sent = put(Encoding::Json, &cut(body.as_bytes(), &at), true);
        prop_assert_eq!(sent, expected.collect::<Vec<_>>());

        let message = |message: &Vec<u8>| {
            [&u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
        };
        let body = messages.iter().flat_map(message).collect::<Vec<_>>();
        let sent = put(Encoding::Protobuf, &cut(&body, &at), true);
        prop_assert_eq!(sent, messages.into_iter().map(|message| (2, message)).collect::<Vec<_>>());
    }

    #[test]
    fn a_client_is_heard_the_same_wherever_its_bytes_are_cut(
        frames in vec((any::<u8>(), vec(any::<u8>(), 0..300)), 0..8),
        noise in vec(any::<u8>(), 0..40),
        at in vec(any::<Index>(), 0..12),
    ) {
        let mut bytes = frames.iter().flat_map(|(first, payload)| client_frame(*first, payload)).collect::<Vec<_>>();
        bytes.extend(noise);
        prop_assert_eq!(heard(&cut(&bytes, &at)), heard(&[&bytes]));
    }
}
