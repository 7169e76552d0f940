//! The object in the body of a write.

use std::ops::Range;

use super::{
    Object, Wanted,
    walk::{Facts, Fault, Mark, Node, SELF_DESCRIBED, Step, Walker},
};
use crate::media::Encoding;

/// Reads objects that stand alone, each in one piece. Its buffers are used again for the next one.
///
/// The sender of a write chooses its bytes, so what readers decode differently is refused: a name
/// that stands twice, null among its values; in protobuf a second object; in CBOR a tag.
#[derive(Debug)]
pub struct Reader {
    encoding: Encoding,
    facts: Facts,
}

impl Reader {
    /// A reader of the wanted facts; it reads no object in YAML.
    pub fn new(encoding: Encoding, wanted: Wanted) -> Self {
        Self { encoding, facts: Facts::of_write(wanted) }
    }

    /// Reads an object: in protobuf in its envelope, in JSON and CBOR with nothing behind it. Fails
    /// with [`Fault::Item`] if what it says cannot be read, or not in one way. Another [`Fault`] if
    /// the bytes are not an object. Values that carry no fact are not validated.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Object<'_>, Fault> {
        self.facts.forget_object();
        let end = walk_one(self.encoding, Node::Object, bytes, &mut self.facts, &mut |_, _| {})?;
        let behind = bytes.get(end..).unwrap_or_default();
        let is_over = match self.encoding {
            Encoding::Json => behind.trim_ascii().is_empty(),
            _ => behind.is_empty(),
        };
        if !is_over {
            return Err(Fault::Unexpected);
        }
        self.facts.object().ok_or(Fault::Item)
    }
}

/// Walks the object in front of `bytes`, and returns the offset behind it. Each marked value is
/// shown with the place of its first token.
pub(crate) fn walk_one(
    encoding: Encoding,
    root: Node,
    bytes: &[u8],
    facts: &mut Facts,
    each: &mut dyn FnMut(Node, Range<usize>),
) -> Result<usize, Fault> {
    let mut walker = Walker::new(encoding, root).ok_or(Fault::NotAnObject)?;
    let tagged = bytes.strip_prefix(SELF_DESCRIBED).filter(|_| encoding == Encoding::Cbor);
    let mut rest = tagged.unwrap_or(bytes);
    loop {
        let (step, _) = walker.step(&mut rest, facts)?;
        let at = bytes.len() - rest.len();
        match step {
            Step::End(_) => return Ok(at),
            // The envelope ends with the bytes.
            Step::More if encoding == Encoding::Protobuf && walker.is_between() => return Ok(at),
            Step::More => return Err(Fault::Truncated),
            Step::Mark(Mark::Value { node, token }, _) => each(node, at.saturating_sub(token)..at),
            // Only lists have these steps.
            Step::Known(_) | Step::Mark(..) => return Err(Fault::Unexpected),
        }
    }
}
