//! Admission reviews.

use ctrlmesh::wire::review::{NotReview, Operation, Reader, Review, Stated};
use serde_json::Value;

use crate::splits::splits;

/// What a reader says of a review: the texts of its request, and of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    operation: Operation,
    request: [String; 7],
    object: Option<Object>,
}

/// The texts of an object, and its labels.
type Object = ([String; 3], Vec<(String, String)>);

fn told(review: &Review<'_>) -> Told {
    let Review { api_version, uid, group, resource, subresource, namespace, name, .. } = *review;
    let object = match review.object {
        Stated::Is(object) => {
            let labels =
                object.labels.into_iter().flat_map(|labels| labels.iter().collect::<Vec<_>>());
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let texts = [object.namespace, object.name, object.uid].map(str::to_owned);
            Some((texts, labels.collect()))
        }
        Stated::Coming | Stated::Unknown => None,
    };
    let request = [api_version, uid, group, resource, subresource, namespace, name];
    Told { operation: review.operation, request: request.map(str::to_owned), object }
}

fn read(pieces: &[&[u8]]) -> Result<Told, NotReview> {
    let mut reader = Reader::new();
    let mut early = None;
    for piece in pieces {
        reader.feed(piece)?;
        let is_told = |review: &Review<'_>| !matches!(review.object, Stated::Coming);
        early = early.or_else(|| reader.review().filter(is_told).map(|review| told(&review)));
    }
    reader.finish()?;
    let all = told(&reader.review().expect("a whole review has its facts"));
    if let Some(early) = early {
        assert_eq!(early.operation, all.operation);
        // The subresource and the name may come behind; what stands twice is unknown in the end.
        assert_eq!(early.request[..4], all.request[..4]);
        assert_eq!(early.request[5], all.request[5]);
        if all.object.is_some() && early.object.is_some() {
            assert_eq!(early.object, all.object);
        }
    }
    Ok(all)
}

/// Any split gives the same facts. A plain decoder finds the same facts. A refused body is no
/// review to that decoder either, or one that decoders read differently.
pub(crate) fn facts(body: &[u8]) {
    let whole = read(&[body]);
    for pieces in splits(body) {
        assert_eq!(read(&pieces), whole, "in {} pieces", pieces.len());
    }
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<Value>();
    let Some(Ok(review)) = values.next() else { return };
    match whole {
        Ok(told) => compare(&told, &review),
        Err(NotReview::Malformed(_) | NotReview::Truncated) => assert!(!review.is_object()),
        // Only what stands twice, or is no text, has a second reading.
        Err(_) if has_odd_texts(&review, body) => {}
        Err(why) => assert!(!is_review(&review), "{why}"),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn compare(told: &Told, review: &Value) {
    assert!(is_review(review));
    let request = &review["request"];
    let (group, resource) = (&request["resource"]["group"], &request["resource"]["resource"]);
    let places = ["subResource", "namespace", "name"].map(|place| &request[place]);
    let [subresource, namespace, name] = places.map(text);
    let head = [&review["apiVersion"], &request["uid"], group, resource].map(text);
    assert_eq!(told.request[..4], head);
    assert_eq!(told.request[4..], [subresource, namespace, name]);
    let (operation, of) = match text(&request["operation"]).as_str() {
        "CREATE" => (Operation::Create, &request["object"]),
        "UPDATE" => (Operation::Update, &request["oldObject"]),
        "DELETE" => (Operation::Delete, &request["oldObject"]),
        "CONNECT" => (Operation::Connect, &Value::Null),
        _ => (Operation::Other, &Value::Null),
    };
    assert_eq!(told.operation, operation);
    if let Some((texts, labels)) = &told.object {
        let meta = &of["metadata"];
        assert_eq!(*texts, ["namespace", "name", "uid"].map(|place| text(&meta[place])));
        let expected = meta["labels"].as_object().into_iter().flatten();
        let expected: Vec<_> = expected.map(|(key, value)| (key.clone(), text(value))).collect();
        assert_eq!(*labels, expected);
    }
}

/// Whether it has all that a review has.
fn is_review(review: &Value) -> bool {
    let versions = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];
    let request = &review["request"];
    let has = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    review["kind"] == "AdmissionReview"
        && versions.iter().any(|version| review["apiVersion"] == **version)
        && has(&request["uid"])
        && has(&request["operation"])
        && has(&request["resource"]["resource"])
        && has(&request["kind"]["kind"])
}

/// Whether a text of the request is none or too long, or a key stands twice in the body.
fn has_odd_texts(review: &Value, body: &[u8]) -> bool {
    let request = &review["request"];
    let is_odd = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => text.len() > 512,
        _ => true,
    };
    let maps = [review, &request["kind"], &request["resource"], request];
    let keys = ["kind", "apiVersion", "uid", "operation", "subResource", "namespace", "name"];
    let inner = ["group", "kind", "resource"];
    let of_maps = maps[1..3].iter().any(|map| {
        !(map.is_object() || map.is_null()) || inner.iter().any(|key| is_odd(&map[*key]))
    });
    let of_request = keys[2..].iter().any(|key| is_odd(&request[*key]));
    let of_root = keys[..2].iter().any(|key| is_odd(&review[*key]));
    of_maps || of_request || of_root || has_repeated_keys(body)
}

/// Whether a key stands twice anywhere: then a decoder that writes again loses one.
fn has_repeated_keys(body: &[u8]) -> bool {
    struct Keys(bool);

    impl<'de> serde::Deserialize<'de> for Keys {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct All;

            impl<'de> serde::de::Visitor<'de> for All {
                type Value = Keys;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a value")
                }

                fn visit_bool<E>(self, _: bool) -> Result<Keys, E> {
                    Ok(Keys(false))
                }

                fn visit_i64<E>(self, _: i64) -> Result<Keys, E> {
                    Ok(Keys(false))
                }

                fn visit_u64<E>(self, _: u64) -> Result<Keys, E> {
                    Ok(Keys(false))
                }

                fn visit_f64<E>(self, _: f64) -> Result<Keys, E> {
                    Ok(Keys(false))
                }

                fn visit_str<E>(self, _: &str) -> Result<Keys, E> {
                    Ok(Keys(false))
                }

                fn visit_unit<E>(self) -> Result<Keys, E> {
                    Ok(Keys(false))
                }

                fn visit_seq<A: serde::de::SeqAccess<'de>>(
                    self,
                    mut items: A,
                ) -> Result<Keys, A::Error> {
                    let mut is_repeated = false;
                    while let Some(Keys(item)) = items.next_element()? {
                        is_repeated |= item;
                    }
                    Ok(Keys(is_repeated))
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut fields: A,
                ) -> Result<Keys, A::Error> {
                    let mut names = std::collections::BTreeSet::new();
                    let mut is_repeated = false;
                    while let Some((name, Keys(value))) = fields.next_entry::<String, Keys>()? {
                        is_repeated |= value | !names.insert(name);
                    }
                    Ok(Keys(is_repeated))
                }
            }

            deserializer.deserialize_any(All)
        }
    }

    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<Keys>();
    !matches!(values.next(), Some(Ok(Keys(false))))
}
