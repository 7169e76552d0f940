//! Lists.

use ctrlmesh::wire::{
    Encoding,
    frames::{Counts, Fault, ListFilter, ListMeta, Verdict},
    object::Object,
};

use crate::{
    readers::{
        cbor,
        protobuf::{self, Body},
        tree::{self, Refused},
    },
    splits::{Seen, splits},
};

/// What a filter did.
struct Outcome {
    result: Result<(ListMeta, Counts), Fault>,
    left: Vec<u8>,
    seen: Vec<Seen>,
}

fn run(encoding: Encoding, chunks: &[&[u8]]) -> Outcome {
    let mut filter = ListFilter::new(encoding).expect("a list");
    let (mut left, mut seen) = (Vec::new(), Vec::new());
    let mut judge = |object: &Object<'_>| {
        let one = Seen::new(object);
        let verdict = one.verdict();
        seen.push(one);
        verdict
    };
    let fed = chunks.iter().try_for_each(|chunk| {
        // What has left cannot be taken back.
        let mut out = Vec::new();
        let fed = filter.feed(chunk, &mut judge, &mut out);
        left.append(&mut out);
        fed
    });
    let counts = filter.counts();
    let result = fed.and_then(|()| {
        let mut out = Vec::new();
        let meta = filter.finish(&mut out);
        left.append(&mut out);
        meta
    });
    Outcome { result: result.map(|meta| (meta, counts)).map_err(|error| error.fault), left, seen }
}

/// Any split gives the same; what the encoding's plain decoder reads is filtered as it says.
pub(crate) fn filter(encoding: Encoding, body: &[u8]) {
    let whole = run(encoding, &[body]);
    for chunks in splits(body) {
        let other = run(encoding, &chunks);
        assert_eq!(other.result, whole.result, "in {} chunks", chunks.len());
        assert_eq!(other.seen, whole.seen);
        match whole.result {
            Ok(_) => assert_eq!(other.left, whole.left),
            // How much has left before the fault is a matter of chunks, not what.
            Err(_) => {
                assert!(other.left.starts_with(&whole.left) || whole.left.starts_with(&other.left))
            }
        }
    }
    match encoding {
        Encoding::Json => check(tree::json(body), &whole, tree::json),
        Encoding::Cbor => {
            let read = |bytes| cbor::first(bytes).filter(|(_, rest)| rest.is_empty());
            check(read(body).map(|(node, _)| node), &whole, |left| {
                read(left).map(|(node, _)| node)
            });
        }
        _ => check_protobuf(body, &whole),
    }
}

fn check<'a>(
    before: Option<tree::Node<'a>>,
    whole: &'a Outcome,
    read: impl Fn(&'a [u8]) -> Option<tree::Node<'a>>,
) {
    let Some(before) = before else { return };
    match (tree::list(&before), &whole.result) {
        (Ok((seen, meta)), Ok((own, counts))) => {
            assert_eq!(whole.seen, seen);
            check_counts(&seen, *counts);
            if let Some(meta) = meta {
                assert_eq!(*own, meta);
            }
            tree::check_list(&before, &read(&whole.left).expect("what left is well-formed"));
        }
        (Err(Refused), Err(_)) => {}
        (Err(Refused), Ok(_)) => panic!("passed a list that no one can judge"),
        // Numbers of more than 32 digits are not followed.
        (Ok(_), Err(Fault::Length)) => {}
        (Ok(_), Err(fault)) => panic!("{fault:?} in a list that is one"),
    }
}

fn check_counts(seen: &[Seen], counts: Counts) {
    let kept = seen.iter().filter(|one| one.verdict() == Verdict::Keep).count();
    let expected = Counts { kept: kept as u64, dropped: (seen.len() - kept) as u64 };
    assert_eq!(counts, expected);
}

fn check_protobuf(body: &[u8], whole: &Outcome) {
    match (protobuf::list(body), &whole.result) {
        (Body::List(list), Ok((_, counts))) => {
            assert_eq!(whole.seen, list.seen);
            check_counts(&list.seen, *counts);
            assert_eq!(whole.left, list.expected);
        }
        (Body::List(_), Err(fault)) => panic!("{fault:?} in a list that is one"),
        (Body::Refused | Body::Malformed, Ok(_)) => panic!("passed a list that no one can judge"),
        (Body::Refused | Body::Malformed, Err(_)) | (Body::Other, _) => {}
    }
}
