use proptest::prelude::*;

use crate::Encoding;

#[test]
fn t71_the_clients_accept_decides_our_answers() {
    use Encoding::{Cbor, Json, Protobuf, Yaml};
    for (accept, expected) in [
        ("", Json),
        ("*/*", Json),
        ("*", Json),
        ("*/", Json),
        ("application/*", Json),
        ("application/json", Json),
        ("application/yaml", Yaml),
        ("application/vnd.kubernetes.protobuf", Protobuf),
        ("application/vnd.kubernetes.protobuf;stream=watch", Protobuf),
        ("application/vnd.kubernetes.protobuf;stream=other", Json),
        ("application/vnd.kubernetes.protobuf,application/json", Protobuf),
        ("application/json,application/vnd.kubernetes.protobuf", Json),
        ("application/json;q=0.5, application/yaml", Yaml),
        ("application/json;q=0.5,application/yaml;q=0.4,application/cbor;q=0.9", Cbor),
        ("application/cbor", Cbor),
        ("application/cbor-seq", Cbor),
        ("application/cbor, application/json;q=0.9", Cbor),
        (
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            Json,
        ),
        (
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Protobuf,
        ),
        // A wildcard comes last, whatever its q.
        ("*/*;q=1,application/yaml;q=0.1", Yaml),
        ("text/html,application/xhtml+xml,*/*;q=0.8", Json),
        ("text/html", Json),
        ("text/html,application/yaml", Yaml),
        ("application/yaml;sv=v1,application/cbor", Cbor),
        ("application/yaml/x,application/cbor", Cbor),
        ("application/yaml/", Yaml),
        ("application/yaml;stream=watch,application/cbor;stream=watch", Cbor),
        ("application/cbor;stream=x;stream=watch", Cbor),
        ("application/cbor;stream=x=;q=1", Json),
        ("yaml", Json),
        // A q that does not parse is 0: last, not refused.
        ("application/yaml;q=x", Yaml),
        ("application/yaml;q=x,application/cbor;q=0.1", Cbor),
        // Types are case-sensitive, as in the API server.
        ("Application/YAML", Json),
    ] {
        assert_eq!(Encoding::negotiate(Some(accept)), expected, "{accept}");
    }
    assert_eq!(Encoding::negotiate(None), Json);
}

#[test]
fn t38_the_responses_content_type_decides_how_it_is_read() {
    use Encoding::{Cbor, Json, Protobuf, Yaml};
    for (content_type, expected) in [
        ("application/json", Some(Json)),
        ("application/json;charset=utf-8", Some(Json)),
        ("Application/JSON ; charset=utf-8", Some(Json)),
        ("application/vnd.kubernetes.protobuf", Some(Protobuf)),
        ("application/vnd.kubernetes.protobuf;stream=watch", Some(Protobuf)),
        ("application/cbor", Some(Cbor)),
        ("application/cbor-seq", Some(Cbor)),
        ("application/yaml", Some(Yaml)),
        ("text/plain; charset=utf-8", None),
        ("application/jsonx", None),
        ("", None),
    ] {
        assert_eq!(Encoding::of_content_type(content_type), expected, "{content_type}");
    }
    for encoding in [Json, Protobuf, Cbor, Yaml] {
        assert_eq!(Encoding::of_content_type(encoding.content_type()), Some(encoding));
    }
    for encoding in [Json, Protobuf, Cbor] {
        assert_eq!(Encoding::of_content_type(encoding.stream_content_type()), Some(encoding));
    }
}

proptest! {
    #[test]
    fn no_header_panics(header in "([*/;,= q.0-9]|application|json|cbor|\\PC){0,40}") {
        let _ = Encoding::negotiate(Some(&header));
        let _ = Encoding::of_content_type(&header);
    }
}
