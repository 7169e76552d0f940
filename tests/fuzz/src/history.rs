//! The filter of watches over the life of a stream: events that are valid, in an order, a spelling
//! and in pieces that the input chooses, against a model of what the client is to be told.

use ctrlmesh::wire::{
    Encoding, ResourceVersion,
    frames::{EventKind, Fault, Verdict, WatchFilter},
};

use crate::{
    readers::{
        cbor, protobuf,
        tree::{self, Told},
    },
    splits::Seen,
    write::Event,
};

/// The choices that the input makes; all are the first when it has ended.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or_default()
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }

    fn event(&mut self, version: u64) -> Event {
        let kinds =
            ["ADDED", "MODIFIED", "DELETED", "MODIFIED", "ADDED", "BOOKMARK", "ERROR", "SHINY"];
        let namespaces = ["team-alpha", "team-bravo", "", "team-bravo", "team-alpha", "?"];
        let kind = self.one(&kinds);
        let namespace = self.one(&namespaces);
        let of = self.one(&[("v1", "Pod"), ("apps/v1", "Deployment"), ("", "Pod"), ("v1", "")]);
        Event { kind, namespace, of, version, style: self.byte() }
    }
}

/// What a client is to be told.
#[derive(Default)]
struct Model {
    left: Vec<u8>,
    /// The position that it does not know yet, with the kind of its objects.
    unseen: Option<(u64, &'static str, &'static str)>,
}

impl Model {
    /// Whether the event leaves, or why the stream is to end.
    fn event(&mut self, event: &Event, body: &[u8], encoding: Encoding) -> Result<bool, Fault> {
        if event.kind == "SHINY" {
            return Err(Fault::Event);
        }
        let is_change = matches!(event.kind, "ADDED" | "MODIFIED" | "DELETED");
        let seen = Seen { namespace: event.namespace.to_owned(), ..Seen::default() };
        let (api_version, kind) = event.of;
        match seen.verdict() {
            Verdict::Unknown if is_change => return Err(Fault::Item),
            Verdict::Drop if is_change => {
                let is_known = !api_version.is_empty() && !kind.is_empty();
                self.unseen = is_known.then_some((event.version, api_version, kind));
                return Ok(false);
            }
            _ => {}
        }
        self.left.extend_from_slice(body);
        if encoding == Encoding::Json && !body.ends_with(b"\n") {
            self.left.push(b'\n');
        }
        if event.kind != "ERROR" {
            self.unseen = None;
        }
        Ok(true)
    }
}

/// The first bytes choose the encoding and how long the pieces are, then each event.
pub(crate) fn follow(input: &[u8]) {
    let mut choices = Choices(input.iter());
    let encoding = choices.one(&[Encoding::Json, Encoding::Protobuf, Encoding::Cbor]);
    let size = 1 + usize::from(choices.byte());
    let mut filter = WatchFilter::new(encoding).expect("a stream");
    let (mut model, mut left) = (Model::default(), Vec::new());
    for version in 1..200 {
        if choices.0.as_slice().is_empty() {
            break;
        }
        let event = choices.event(version);
        let body = event.write(encoding);
        let expected = model.event(&event, &body, encoding);
        let found = feed(&mut filter, &body, size, &mut left);
        assert_eq!(left, model.left, "{event:?}");
        let is_kept = match expected {
            Ok(is_kept) => is_kept,
            Err(fault) => {
                assert_eq!(found, Err(fault), "{event:?}");
                return;
            }
        };
        let told = (tree::event_kind(event.kind.as_bytes()), u128::from(version), is_kept);
        assert_eq!(found, Ok(vec![told]), "{event:?}");
        assert!(filter.is_between());
        assert_eq!(filter.has_bookmark(), model.unseen.is_some());
        if choices.byte() % 3 == 0 {
            let bookmark = filter.take_bookmark();
            check_bookmark(encoding, bookmark.as_deref(), model.unseen.take());
            assert_eq!(filter.take_bookmark(), None);
        }
    }
}

/// An event as the filter told it: its kind, its position, and whether it left.
type Judged = (EventKind, u128, bool);

fn feed(
    filter: &mut WatchFilter,
    body: &[u8],
    size: usize,
    left: &mut Vec<u8>,
) -> Result<Vec<Judged>, Fault> {
    let mut judged = Vec::new();
    let mut fed = 0;
    for chunk in body.chunks(size) {
        let mut rest = chunk;
        loop {
            // What has left cannot be taken back.
            let mut out = Vec::new();
            let passed = filter.next(rest, &mut |object| Seen::new(object).verdict(), &mut out);
            left.extend_from_slice(&out);
            let Some(passed) = passed.map_err(|error| error.fault)? else {
                assert!(out.is_empty());
                break;
            };
            assert_eq!(!out.is_empty(), passed.is_kept, "only what is kept leaves");
            let ResourceVersion::At(position) = passed.event.resource_version else {
                panic!("{passed:?}");
            };
            judged.push((passed.event.kind, position, passed.is_kept));
            rest = &rest[passed.at..];
        }
        fed += chunk.len();
        let is_whole = body[fed..].is_empty() || body[fed..] == *b"\n";
        assert_eq!(filter.is_between(), is_whole, "after {fed} of {} bytes", body.len());
    }
    Ok(judged)
}

/// A plain decoder reads the position in it, and nothing else.
fn check_bookmark(
    encoding: Encoding,
    bookmark: Option<&[u8]>,
    expected: Option<(u64, &str, &str)>,
) {
    let (Some(body), Some((version, api_version, kind))) = (bookmark, expected) else {
        assert!(bookmark.is_none() && expected.is_none());
        return;
    };
    let mut told: Vec<Told> = match encoding {
        Encoding::Json => tree::jsons(body).expect("JSON").iter().map(tree::event).collect(),
        Encoding::Cbor => cbor::sequence(body).expect("CBOR").iter().map(tree::event).collect(),
        _ => {
            let all = protobuf::stream(body).expect("protobuf");
            all.into_iter().filter_map(|frame| frame.told).collect()
        }
    };
    let one = told.pop().expect("an event");
    assert!(told.is_empty());
    assert_eq!(one.kind, EventKind::Bookmark);
    assert_eq!(one.version, ResourceVersion::At(version.into()));
    let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
    assert_eq!(one.object.expect("an object"), Seen { api_version, kind, ..Seen::default() });
}
