use super::renamed;
use crate::name::{BodyKind, NameError};

/// Three lines a body: the kind and the encoding, then in hexadecimal the object named `lock` and
/// the object named `lock---s1`, written by the serializers of Kubernetes 1.37.1. The labels, the
/// data and the port have `name: lock`, too.
const WRITTEN_BY_UPSTREAM: &str = include_str!("golden/upstream.txt");

#[test]
fn t72_upstreams_bytes_become_upstreams_bytes() {
    let lines: Vec<&str> = WRITTEN_BY_UPSTREAM.lines().collect();
    let (bodies, rest) = lines.as_chunks::<3>();
    assert_eq!((bodies.len(), rest.len()), (12, 0), "three objects in four encodings");
    for [title, lock, shard] in bodies {
        let kind = match title.split_once(' ').expect("a kind and an encoding").1 {
            "Json" => BodyKind::Json,
            "Yaml" => {
                assert_eq!(renamed(BodyKind::Yaml, hexadecimal(lock)), Err(NameError::NotJson));
                continue;
            }
            "Protobuf" => BodyKind::Protobuf,
            "Cbor" => BodyKind::Cbor,
            other => panic!("{other}"),
        };
        let expected = hexadecimal(shard);
        assert_eq!(renamed(kind, hexadecimal(lock)), Ok(Some(expected.clone())), "{title}");
        assert_eq!(renamed(kind, expected), Ok(None), "{title}");
    }
}

fn hexadecimal(text: &str) -> Vec<u8> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        panic!("an odd number of digits");
    };
    pairs
        .iter()
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("two digits")
        })
        .collect()
}
