//! A watch event that carries only a position.

use serde::Serialize;

use crate::{
    media::Encoding,
    object::walk::SELF_DESCRIBED,
    rv::ResourceVersion,
    status::write::{cbor, cbor_event, enveloped, framed, json_event, message, text},
};

/// An event of type BOOKMARK for one kind of object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bookmark {
    kind: Box<str>,
    api_version: Box<str>,
    metadata: Metadata,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

impl Bookmark {
    /// A bookmark; `None` if the kind is not known, or the version is not a position.
    pub fn new(api_version: &str, kind: &str, version: ResourceVersion) -> Option<Self> {
        let metadata = Metadata { resource_version: version.position()?.to_string() };
        let is_known = !api_version.is_empty() && !kind.is_empty();
        is_known.then(|| Self { kind: kind.into(), api_version: api_version.into(), metadata })
    }

    /// The event, framed as in a stream of `encoding`.
    pub fn event(&self, encoding: Encoding) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        match encoding {
            Encoding::Json | Encoding::Yaml => json_event("BOOKMARK", self, &mut out),
            Encoding::Cbor => {
                out.extend_from_slice(SELF_DESCRIBED);
                cbor_event("BOOKMARK", &mut out);
                cbor(&serde_json::to_value(self).unwrap_or_default(), &mut out);
            }
            Encoding::Protobuf => framed("BOOKMARK", &mut out, |object| {
                enveloped(&self.api_version, &self.kind, object, |raw| {
                    message(1, raw, |meta| text(6, &self.metadata.resource_version, meta));
                });
            }),
        }
        out
    }
}
