//! The object in the body of a write.

use super::{
    Object, Wanted,
    walk::{Facts, Fault, Node, Step, Walker},
};
use crate::wire::media::Encoding;

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
    #[must_use]
    pub fn new(encoding: Encoding, wanted: Wanted) -> Self {
        Self { encoding, facts: Facts::of_write(wanted) }
    }

    /// Reads an object: in protobuf in its envelope, in JSON and CBOR with nothing behind it.
    ///
    /// # Errors
    /// [`Fault::Item`] if what it says cannot be read, or not in one way. Another [`Fault`] if the
    /// bytes are not an object. Values that carry no fact are not validated.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Object<'_>, Fault> {
        self.facts.forget_object();
        let mut walker = Walker::new(self.encoding, Node::Object).ok_or(Fault::NotAnObject)?;
        let behind = match walker.walk(bytes, &mut self.facts)? {
            Step::End(at) => bytes.get(at..).unwrap_or_default(),
            // The envelope ends with the bytes.
            Step::More if self.encoding == Encoding::Protobuf && walker.is_between() => &[],
            Step::More => return Err(Fault::Truncated),
            // Only lists have these steps.
            Step::Known(_) | Step::Mark(..) => return Err(Fault::Unexpected),
        };
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
