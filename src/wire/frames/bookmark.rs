//! A watch event that carries only a position.

use crate::wire::{
    media::Encoding,
    rv::ResourceVersion,
    status::write::{Node, enveloped, framed, message, text},
};

/// An event of type BOOKMARK for one kind of object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bookmark {
    api_version: Box<str>,
    kind: Box<str>,
    position: String,
}

impl Bookmark {
    /// A bookmark; `None` if the kind is not known, or the version is not a position.
    pub fn new(api_version: &str, kind: &str, version: ResourceVersion) -> Option<Self> {
        let position = version.position()?.to_string();
        let is_known = !api_version.is_empty() && !kind.is_empty();
        is_known.then(|| Self { api_version: api_version.into(), kind: kind.into(), position })
    }

    /// The event, framed as in a stream of `encoding`.
    pub fn event(&self, encoding: Encoding) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        match encoding {
            Encoding::Json | Encoding::Yaml => {
                self.tree().json(&mut out);
                out.push(b'\n');
            }
            Encoding::Cbor => self.tree().cbor(&mut out),
            Encoding::Protobuf => framed("BOOKMARK", &mut out, |object| {
                enveloped(&self.api_version, &self.kind, object, |raw| {
                    message(1, raw, |meta| text(6, &self.position, meta));
                });
            }),
        }
        out
    }

    fn tree(&self) -> Node<'_> {
        let meta = Node::Map(vec![("resourceVersion", Node::Text(&self.position))]);
        let object = Node::Map(vec![
            ("kind", Node::Text(&self.kind)),
            ("apiVersion", Node::Text(&self.api_version)),
            ("metadata", meta),
        ]);
        Node::Object(vec![("type", Node::Text("BOOKMARK")), ("object", object)])
    }
}
