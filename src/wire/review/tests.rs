use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::object::Fault;

/// The facts of a review, owned. The object's are its namespace, name, uid and labels.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    head: [String; 7],
    operation: Operation,
    is_of_subresource: bool,
    object: Option<Stored>,
}

type Stored = (String, String, String, Vec<(String, String)>);

fn told(review: &Review<'_>) -> Told {
    let Review { api_version, uid, group, resource, namespace, name, subresource, .. } = *review;
    let Stated::Is(object) = review.object else {
        assert!(matches!(review.object, Stated::Unknown), "{review:?}");
        return told(&Review { object: Stated::Is(Default::default()), ..*review }).without();
    };
    let labels = object.labels.into_iter().flat_map(|labels| labels.iter().collect::<Vec<_>>());
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let texts = [object.namespace, object.name, object.uid].map(str::to_owned);
    let [of_namespace, of_name, of_uid] = texts;
    let labels = labels.map(owned).collect();
    Told {
        head: [api_version, uid, group, resource, namespace, name, subresource].map(str::to_owned),
        operation: review.operation,
        is_of_subresource: review.is_of_subresource,
        object: Some((of_namespace, of_name, of_uid, labels)),
    }
}

impl Told {
    fn without(self) -> Self {
        Self { object: None, ..self }
    }
}

fn feed<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Result<Told, NotReview> {
    let mut reader = Reader::new();
    pieces.into_iter().try_for_each(|piece| reader.feed(piece))?;
    reader.finish()?;
    Ok(told(&reader.review().expect("all facts")))
}

fn read(body: &str) -> Result<Told, NotReview> {
    let whole = feed([body.as_bytes()]);
    assert_eq!(feed(body.as_bytes().chunks(1)), whole, "byte by byte: {body}");
    whole
}

/// What a decoder of the whole body makes of it.
fn oracle(review: &Value) -> Told {
    let request = &review["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (operation, of) = match request["operation"].as_str().unwrap() {
        "CREATE" => (Operation::Create, &request["object"]),
        "UPDATE" => (Operation::Update, &request["oldObject"]),
        "DELETE" => (Operation::Delete, &request["oldObject"]),
        "CONNECT" => (Operation::Connect, &Value::Null),
        _ => (Operation::Other, &Value::Null),
    };
    let meta = &of["metadata"];
    let labels = meta["labels"].as_object().into_iter().flatten();
    let kind = &request["kind"];
    Told {
        head: [
            text(&review["apiVersion"]),
            text(&request["uid"]),
            text(&request["resource"]["group"]),
            text(&request["resource"]["resource"]),
            text(&request["namespace"]),
            text(&request["name"]),
            text(&request["subResource"]),
        ],
        operation,
        is_of_subresource: (&kind["kind"], &kind["group"])
            == (&json!("Scale"), &json!("autoscaling")),
        object: meta.is_object().then(|| {
            let labels = labels.map(|(key, value)| (key.clone(), text(value))).collect();
            (text(&meta["namespace"]), text(&meta["name"]), text(&meta["uid"]), labels)
        }),
    }
}

/// A review as the API server 1.37 sends it.
fn update() -> Value {
    let object = |team: &str| {
        json!({
            "kind": "Deployment", "apiVersion": "apps/v1",
            "metadata": {
                "name": "web", "namespace": "team-a", "uid": "u-1", "resourceVersion": "7",
                "creationTimestamp": null, "labels": {"team": team, "a": "b"},
                "managedFields": [{"manager": "x", "fieldsV1": {"f:metadata": {"uid": "u-9"}}}],
            },
            "spec": {"template": {"metadata": {"namespace": "team-z", "labels": {"team": "z"}}}},
        })
    };
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "r-1",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "requestKind": {"group": "extensions", "version": "v1", "kind": "Scale"},
            "requestResource": {"group": "extensions", "version": "v1", "resource": "others"},
            "name": "web", "namespace": "team-a", "operation": "UPDATE",
            "userInfo": {"username": "u", "uid": "user", "groups": ["system:masters"]},
            "object": object("new"), "oldObject": object("old"), "dryRun": false,
            "options": {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

/// The review with another value at a place of the request; null stands for none at all.
fn with(place: &str, value: Value) -> Value {
    let mut review = update();
    let request = review["request"].as_object_mut().unwrap();
    match value {
        Value::Null => request.remove(place),
        value => request.insert(place.to_owned(), value),
    };
    review
}

#[test]
fn who_owns_an_object_now_is_read_from_what_is_stored() {
    let labels = |review: &Value| read(&review.to_string()).unwrap().object.unwrap().3;
    let team = |team: &str| vec![("a".into(), "b".into()), ("team".to_owned(), team.to_owned())];
    assert_eq!(labels(&update()), team("old"));
    assert_eq!(labels(&with("operation", json!("DELETE"))), team("old"));
    assert_eq!(labels(&with("operation", json!("CREATE"))), team("new"));
    for silent in ["CONNECT", "PATCH"] {
        let review = with("operation", json!(silent)).to_string();
        assert_eq!(read(&review).unwrap().object, None, "{silent}");
    }
    assert_eq!(read(&with("oldObject", Value::Null).to_string()).unwrap().object, None);
}

#[test]
fn both_versions_are_reviews_and_the_subresource_is_read() {
    let mut review = with("subResource", json!("status"));
    assert_eq!(read(&review.to_string()).unwrap(), oracle(&review));
    assert_eq!(read(&review.to_string()).unwrap().head[6], "status");
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    assert_eq!(read(&review.to_string()).unwrap().head[0], "admission.k8s.io/v1beta1");
}

#[test]
fn kinds_that_only_subresources_have_are_told_from_those_of_the_resource() {
    let mut review = update();
    let request = review["request"].clone();
    for (group, kind, resource, is) in [
        ("autoscaling", "Scale", "deployments", true),
        ("policy", "Eviction", "pods", true),
        ("", "Binding", "pods", true),
        ("", "Binding", "bindings", false),
        ("authentication.k8s.io", "TokenRequest", "serviceaccounts", true),
        ("", "Pod", "pods", false),
        ("example.com", "Scale", "scales", false),
        ("example.com", "Eviction", "others", false),
    ] {
        review["request"] = request.clone();
        review["request"]["kind"] = json!({"group": group, "version": "v1", "kind": kind});
        review["request"]["resource"]["resource"] = json!(resource);
        let told = read(&review.to_string()).unwrap();
        assert_eq!(told.is_of_subresource, is, "{group}/{kind} of {resource}");
    }
}

#[test]
fn bad_i13_what_is_no_review_is_told_apart_and_why() {
    let without = |place: &str| with(place, Value::Null).to_string();
    let mut conversion = update();
    conversion["kind"] = json!("ConversionReview");
    let mut version = update();
    version["apiVersion"] = json!("admission.k8s.io/v2");
    let whole = update().to_string();
    for (body, why) in [
        ("", NotReview::Truncated),
        ("  ", NotReview::Truncated),
        (&whole[..whole.len() - 1], NotReview::Truncated),
        ("<html>", NotReview::Malformed(Fault::NotAnObject)),
        ("[]", NotReview::Malformed(Fault::NotAnObject)),
        (r#"{"kind" "AdmissionReview"}"#, NotReview::Malformed(Fault::Unexpected)),
        ("{}", NotReview::Kind),
        (&conversion.to_string(), NotReview::Kind),
        (r#"{"kind":{"kind":"AdmissionReview"}}"#, NotReview::Ambiguous),
        (&version.to_string(), NotReview::Version),
        (r#"{"kind":"AdmissionReview","response":{"uid":"r"}}"#, NotReview::Version),
        (
            r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{}}"#,
            NotReview::Missing("request"),
        ),
        (
            r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}"#,
            NotReview::Missing("request"),
        ),
        (&without("uid"), NotReview::Missing("request.uid")),
        (&with("uid", json!("")).to_string(), NotReview::Missing("request.uid")),
        (&with("uid", json!(7)).to_string(), NotReview::Ambiguous),
        (&without("operation"), NotReview::Missing("request.operation")),
        (&without("resource"), NotReview::Missing("request.resource")),
        (&without("kind"), NotReview::Missing("request.kind")),
    ] {
        assert_eq!(read(body).unwrap_err(), why, "{body}");
    }
}

#[test]
fn bad_i13_keys_that_stand_twice_make_no_review() {
    let whole = update().to_string();
    let twice = |place: &str, value: &str| {
        whole.replacen("\"dryRun\":", &format!("\"{place}\":{value},\"dryRun\":"), 1)
    };
    for (place, value, why) in [
        ("uid", r#""r-1""#, NotReview::Ambiguous),
        ("namespace", r#""team-b""#, NotReview::Ambiguous),
        ("operation", r#""CREATE""#, NotReview::Ambiguous),
        ("object", "{}", NotReview::Repeated("request.object")),
        ("oldObject", "null", NotReview::Repeated("request.oldObject")),
        ("resource", "{}", NotReview::Repeated("request.resource")),
        ("kind", "{}", NotReview::Repeated("request.kind")),
    ] {
        assert_eq!(read(&twice(place, value)).unwrap_err(), why, "{place}");
    }
    // Inside the object its facts are unknown: the webhook server may still read it.
    let two = whole.replacen('{', "{\"request\":{},", 1);
    assert!(matches!(
        read(&two).unwrap_err(),
        NotReview::Missing(_) | NotReview::Repeated("request")
    ));
    // Inside the object the facts are unknown: the webhook server may still read it.
    for again in [r#""labels":{}"#, r#""labels":null"#, r#""uid":null"#, r#""uid":"u-1""#] {
        let version = r#""resourceVersion":"7""#;
        let twice = whole.replace(version, &format!("{version},{again}"));
        assert_eq!(read(&twice).unwrap().object, None, "{again}");
    }
}

#[test]
fn bad_i13_a_review_inside_an_object_is_data() {
    let mut review = update();
    let inner = with("namespace", json!("team-b"));
    for object in ["object", "oldObject"] {
        review["request"][object]["data"] = json!({"text": inner.to_string(), "map": inner});
        review["request"][object]["request"] = inner["request"].clone();
        review["request"][object]["operation"] = json!("CREATE");
    }
    review["request"]["options"]["kind"] = json!("AdmissionReview");
    assert_eq!(read(&review.to_string()).unwrap(), oracle(&update()));
}

/// The pieces of a body that are read until the facts are known.
fn known_after(body: &[u8], needs_object: bool) -> u64 {
    let mut reader = Reader::new();
    for piece in body.chunks(64) {
        reader.feed(piece).unwrap();
        let is_known =
            |review: Review<'_>| !needs_object || !matches!(review.object, Stated::Coming);
        if reader.review().is_some_and(is_known) {
            break;
        }
    }
    reader.read()
}

#[test]
fn bad_i13_large_reviews_are_decided_as_soon_as_their_facts_are_read() {
    // As the API server writes it: each of these characters in six bytes.
    let escaped = r"\u003c".repeat(3_000_000);
    let object = |labels: &str| {
        format!(
            r#"{{"metadata":{{"name":"x","namespace":"a","labels":{labels}}},"data":"{escaped}"}}"#
        )
    };
    let head = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"r","kind":{"group":"","version":"v1","kind":"Big"},"resource":{"group":"","version":"v1","resource":"bigs"},"name":"x","namespace":"a","operation":"#;
    let (new, old) = (object(r#"{"of":"new"}"#), object(r#"{"of":"old"}"#));
    let create = format!(r#"{head}"CREATE","object":{new},"oldObject":null}}}}"#);
    let update = format!(r#"{head}"UPDATE","object":{new},"oldObject":{old}}}}}"#);
    assert!(create.len() > 18_000_000 && update.len() > 36_000_000);
    assert!(known_after(create.as_bytes(), false) < 512);
    assert!(known_after(create.as_bytes(), true) < 512);
    assert!(known_after(update.as_bytes(), false) < 512);
    let held = known_after(update.as_bytes(), true);
    assert!((18_000_000..18_001_000).contains(&held), "the new object stands before it: {held}");
    let labels = |body: &str| feed(body.as_bytes().chunks(16 << 10)).unwrap().object.unwrap().3;
    assert_eq!(labels(&create), [("of".to_owned(), "new".to_owned())]);
    assert_eq!(labels(&update), [("of".to_owned(), "old".to_owned())]);
}

#[test]
fn nothing_is_told_before_all_that_it_says_is_known() {
    let review = update();
    let request = review["request"].to_string();
    // The namespace last, behind both objects: until then it may be in none.
    let late = with("namespace", Value::Null)["request"].to_string();
    let late = late.strip_suffix('}').unwrap();
    let head = r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":"#;
    let mut reader = Reader::new();
    reader.feed(format!("{head}{late}").as_bytes()).unwrap();
    assert!(reader.review().is_none());
    reader.feed(br#","namespace":"team-a""#).unwrap();
    assert_eq!(reader.review().map(|review| review.namespace.to_owned()).unwrap(), "team-a");
    // The kind of the document last.
    let mut reader = Reader::new();
    reader.feed(format!(r#"{{"request":{request}"#).as_bytes()).unwrap();
    assert!(reader.review().is_none());
    reader.feed(br#","apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#).unwrap();
    assert!(reader.review().is_some());
    reader.finish().unwrap();
}

/// A number that follows from the one before, for orders and splits.
fn next(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap() % below.max(1)
}

/// Writes a value with its keys in any order, with gaps, and with its texts escaped or not.
fn write(value: &Value, seed: &mut u64, out: &mut String) {
    let gap =
        |seed: &mut u64, out: &mut String| out.push_str(["", "", " ", "\r\n\t"][next(seed, 4)]);
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            for at in (1..fields.len()).rev() {
                fields.swap(at, next(seed, at + 1));
            }
            out.push('{');
            for (at, (name, value)) in fields.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                gap(seed, out);
                text(name, seed, out);
                gap(seed, out);
                out.push(':');
                gap(seed, out);
                write(value, seed, out);
                gap(seed, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write(item, seed, out);
            }
            out.push(']');
        }
        Value::String(value) => text(value, seed, out),
        other => out.push_str(&other.to_string()),
    }
}

fn text(value: &str, seed: &mut u64, out: &mut String) {
    if next(seed, 3) > 0 {
        return out.push_str(&Value::from(value).to_string());
    }
    out.push('"');
    out.extend(value.encode_utf16().map(|unit| format!("\\u{unit:04x}")));
    out.push('"');
}

fn objects() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("[a-c]{1,2}", "[<>&é😀a]{0,3}", 0..4);
    let junk = prop_oneof![
        Just(json!(null)),
        Just(json!("}]\"\\{")),
        Just(json!([{"metadata": {"uid": "u"}}, -1.5e3, true])),
        Just(json!({"kind": "AdmissionReview", "request": {"uid": "no", "namespace": "no"}})),
    ];
    prop_oneof![
        1 => Just(json!(null)),
        6 => (labels, "[a-c<]{0,3}", junk).prop_map(|(labels, text, junk)| json!({
            "kind": "Pod",
            "metadata": {"labels": labels, "name": text, "uid": text, "annotations": {"uid": junk}},
            "spec": junk, "request": junk, "status": {"metadata": {"name": "no"}},
        })),
    ]
}

fn reviews() -> impl Strategy<Value = Value> {
    (
        (objects(), objects()),
        prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", "CONNECT", "PATCH"]),
        prop::sample::select(vec![("Pod", ""), ("Scale", "autoscaling")]),
        prop::option::of("[a-c]{1,3}"),
        prop::option::of("status|scale"),
        prop::bool::ANY,
    )
        .prop_map(
            |((object, old), operation, (kind, group), namespace, subresource, is_beta)| {
                let mut review = with("namespace", Value::Null);
                review["apiVersion"] = json!(
                    ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"][usize::from(is_beta)]
                );
                let request = &mut review["request"];
                request["object"] = object;
                request["oldObject"] = old;
                request["operation"] = json!(operation);
                request["kind"] = json!({"group": group, "version": "v1", "kind": kind});
                for (place, value) in [("namespace", namespace), ("subResource", subresource)] {
                    if let Some(value) = value {
                        request[place] = json!(value);
                    }
                }
                review
            },
        )
}

proptest! {
    #[test]
    fn any_order_and_any_split_tell_what_a_whole_decoder_tells(review in reviews(), seed: u64) {
        let mut seed = seed;
        let mut body = String::new();
        write(&review, &mut seed, &mut body);
        prop_assert_eq!(&serde_json::from_str::<Value>(&body).unwrap(), &review);
        let expected = oracle(&review);
        let mut rest = body.as_bytes();
        let mut reader = Reader::new();
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(1 + next(&mut seed, rest.len().min(97)));
            reader.feed(piece).unwrap();
            rest = behind;
            // An early report is never taken back.
            if let Some(early) = reader.review() {
                let mut same = told(&Review { object: Stated::Unknown, ..early });
                let head = |told: &Told| (told.operation, told.is_of_subresource, told.head[..5].to_vec());
                prop_assert_eq!(head(&same), head(&expected));
                if !matches!(early.object, Stated::Coming) {
                    same = told(&early);
                    prop_assert_eq!(&same.object, &expected.object);
                }
            }
        }
        prop_assert_eq!(reader.finish(), Ok(()));
        prop_assert_eq!(told(&reader.review().unwrap()), expected);
        prop_assert_eq!(reader.read(), body.len() as u64);
    }

    #[test]
    fn what_is_cut_short_is_no_review(review in reviews(), seed: u64) {
        let mut seed = seed;
        let mut body = String::new();
        write(&review, &mut seed, &mut body);
        let cut = next(&mut seed, body.len());
        prop_assert!(feed([&body.as_bytes()[..cut]]).is_err());
    }
}
