//! Lists split into items, and events made of the items, as independent decoders read them.

use serde_json::{Value, json};

use super::{
    filter::{cbor, cbor_of, field_of, fields, json_of, proto_item, proto_list},
    write,
};
use crate::{
    Encoding, ResourceVersion,
    frames::{
        EventKind, Fault, FrameError, ListHead, ListItems, Listed, TypeMeta, WatchScanner,
        object_event,
    },
    object::Wanted,
};

/// Namespace, name, whether it has an owner, whether it contains its kind, bytes.
type Found = (String, String, bool, bool, Vec<u8>);

fn items(
    encoding: Encoding,
    body: &[u8],
    size: usize,
) -> Result<(Vec<Found>, ListHead), FrameError> {
    items_wanting(encoding, body, size, Wanted::default())
}

fn items_wanting(
    encoding: Encoding,
    body: &[u8],
    size: usize,
    wanted: Wanted,
) -> Result<(Vec<Found>, ListHead), FrameError> {
    let mut list = ListItems::wanting(encoding, wanted).expect("a list");
    let mut found = Vec::new();
    for chunk in body.chunks(size) {
        list.feed(chunk, &mut |item| {
            let object = item.object;
            let has_type = !object.kind.is_empty() && !object.api_version.is_empty();
            let name = (object.namespace.to_owned(), object.name.to_owned());
            found.push((name.0, name.1, item.has_owner, has_type, item.bytes.to_vec()));
        })?;
    }
    Ok((found, list.finish()?))
}

fn pods() -> Value {
    let owner = json!([{"kind": "ReplicaSet", "uid": "1"}]);
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "77"}, "items": [
        {"metadata": {"namespace": "a", "name": "one", "uid": "u1", "ownerReferences": []}, "spec": {"x": ["}]", {"items": []}]}},
        {"metadata": {"namespace": "b", "name": "two", "uid": "u2", "ownerReferences": owner}},
        {"kind": "Own", "apiVersion": "of/v1", "metadata": {"name": "three", "uid": "u3"}},
    ]})
}

fn type_meta(head: &ListHead) -> Option<TypeMeta> {
    TypeMeta::of_items(&head.api_version, &head.kind)
}

fn expected(at: usize) -> Value {
    let mut object = pods()["items"][at].clone();
    if at < 2 {
        object["kind"] = "Pod".into();
        object["apiVersion"] = "v1".into();
    }
    json!({"type": "ADDED", "object": object})
}

fn event(encoding: Encoding, head: &ListHead, found: &Found) -> Vec<u8> {
    let listed = Listed { bytes: &found.4, has_type: found.3 };
    object_event(encoding, EventKind::Added, type_meta(head).as_ref(), listed).expect("an event")
}

fn check(encoding: Encoding, body: &[u8], read: impl Fn(&[u8]) -> Value) {
    for size in [1, 2, 3, 7, 64, 4096] {
        let (found, head) = items(encoding, body, size).expect("a list");
        let names: Vec<_> =
            found.iter().map(|(ns, name, owned, ..)| (&**ns, &**name, *owned)).collect();
        assert_eq!(names, [("a", "one", false), ("b", "two", true), ("", "three", false)]);
        let owners = Wanted { owners: true, ..Wanted::default() };
        let (wanting, _) = items_wanting(encoding, body, size, owners).expect("a list");
        assert_eq!(wanting, found, "owners are the same, read or only counted");
        assert_eq!((&*head.api_version, &*head.kind), ("v1", "PodList"));
        assert_eq!(head.meta.resource_version, ResourceVersion::At(77));
        for (at, found) in found.iter().enumerate() {
            assert_eq!(read(&found.4), pods()["items"][at], "{size}");
            let event = event(encoding, &head, found);
            assert_eq!(read(&event), expected(at), "{size}");
            let mut scanner = WatchScanner::new(encoding).expect("a watch");
            let seen: Vec<_> = scanner.feed(&event).collect::<Result<_, _>>().expect("an event");
            assert_eq!(seen.len(), 1);
            assert_eq!(seen[0].event.kind, EventKind::Added);
            assert!(scanner.is_between());
        }
    }
}

#[test]
fn items_of_json_become_events() {
    check(Encoding::Json, pods().to_string().as_bytes(), json_of);
    let spaced = serde_json::to_string_pretty(&pods()).unwrap();
    check(Encoding::Json, spaced.as_bytes(), json_of);
}

#[test]
fn t37_items_of_cbor_become_events() {
    for style in 0..8 {
        // Items have no tag in front of them, so the body has none.
        let body = cbor(&pods(), style & 3);
        check(Encoding::Cbor, &body, cbor_of);
    }
}

#[test]
fn a_large_cbor_map_becomes_an_event() {
    for count in [21, 22, 23, 24, 200, 253] {
        let mut object: Value = (0..count).map(|at| (format!("f{at}"), json!(at))).collect();
        object["metadata"] = json!({"name": "x"});
        let list = json!({"kind": "XList", "apiVersion": "v1", "metadata": {}, "items": [object]});
        for style in [0, 1] {
            let (found, head) = items(Encoding::Cbor, &cbor(&list, style), 4096).expect("a list");
            let mut expected = object.clone();
            expected["kind"] = "X".into();
            expected["apiVersion"] = "v1".into();
            let event = event(Encoding::Cbor, &head, &found[0]);
            assert_eq!(cbor_of(&event)["object"], expected, "{count}");
        }
    }
}

#[test]
fn items_of_protobuf_become_events() {
    let owned = write::field(1, &[write::field(1, b"two"), write::field(13, b"x")].concat());
    let list = [proto_item("a", "one"), owned.clone()];
    let body = proto_list(&list);
    for size in [1, 2, 5, 4096] {
        let (found, mut head) = items(Encoding::Protobuf, &body, size).expect("a list");
        assert_eq!(found[0].4, list[0]);
        assert_eq!(found[1].4, owned);
        assert_eq!((found[0].2, found[1].2), (false, true));
        assert_eq!((&*head.api_version, &*head.kind), ("v1", "Pod"));
        head.kind = "PodList".into();
        let event = event(Encoding::Protobuf, &head, &found[0]);
        let (length, message) = event.split_at(4);
        assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, message.len());
        assert_eq!(field_of(message, 1), b"ADDED");
        let object = field_of(&field_of(message, 2), 1);
        let envelope = object.strip_prefix(b"k8s\0").expect("the magic");
        let kind = fields(&field_of(envelope, 1));
        assert_eq!(kind, [(1, b"v1".to_vec()), (2, b"Pod".to_vec())]);
        assert_eq!(field_of(envelope, 2), list[0]);
    }
}

#[test]
fn what_has_no_kind_is_no_event() {
    let object = Listed { bytes: b"{}", has_type: false };
    let say = |kind| TypeMeta::of_items("v1", kind);
    assert_eq!(say("Table"), None);
    assert_eq!(say("List"), None);
    assert_eq!(TypeMeta::of_items("", "PodList"), None);
    assert_eq!(object_event(Encoding::Json, EventKind::Added, None, object), None);
    assert_eq!(
        object_event(Encoding::Json, EventKind::Modified, say("PodList").as_ref(), object),
        None
    );
    let event = object_event(Encoding::Json, EventKind::Deleted, say("PodList").as_ref(), object);
    let text = r#"{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1"}}"#;
    assert_eq!(String::from_utf8(event.unwrap()).unwrap(), format!("{text}\n"));
}

#[test]
fn t45_a_list_that_breaks_off_has_no_end() {
    let body = pods().to_string();
    for end in 1..body.len() {
        assert!(items(Encoding::Json, &body.as_bytes()[..end], 64).is_err(), "{end}");
    }
    let nameless = json!({"kind": "PodList", "apiVersion": "v1", "items": [{"spec": {}}]});
    let error = items(Encoding::Json, nameless.to_string().as_bytes(), 64).unwrap_err();
    assert_eq!(error.fault, Fault::Item);
}
