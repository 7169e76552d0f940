//! Walkers, one per encoding.

mod cbor;
mod json;
mod proto;
mod skip;

pub use self::proto::MAGIC;
use self::{cbor::Cbor, json::Json, proto::Proto};
use super::{facts::Facts, fault::Fault, place::Node, step::Step};
use crate::wire::media::Encoding;

/// The walker of an encoding.
#[derive(Debug)]
pub(super) enum Walker {
    Json(Json),
    Proto(Proto),
    Cbor(Cbor),
}

impl Walker {
    /// `None` for YAML, which is never streamed.
    pub(super) fn new(encoding: Encoding, root: Node) -> Option<Self> {
        Some(match encoding {
            Encoding::Json => Self::Json(Json::new(root)),
            Encoding::Protobuf => Self::Proto(Proto::new(root)),
            Encoding::Cbor => Self::Cbor(Cbor::new(root)),
            Encoding::Yaml => return None,
        })
    }

    /// Walks to the next step, takes the bytes in front of it off `rest` and returns them.
    pub(super) fn step<'c>(
        &mut self,
        rest: &mut &'c [u8],
        facts: &mut Facts,
    ) -> Result<(Step, &'c [u8]), Fault> {
        let step = self.walk(rest, facts)?;
        let at = match step {
            Step::More => rest.len(),
            Step::End(at) | Step::Known(at) | Step::Mark(_, at) => at,
        };
        let (piece, behind) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        *rest = behind;
        Ok((step, piece))
    }

    pub(super) fn walk(&mut self, chunk: &[u8], facts: &mut Facts) -> Result<Step, Fault> {
        match self {
            Self::Json(json) => json.walk(chunk, facts),
            Self::Proto(proto) => proto.walk(chunk, facts),
            Self::Cbor(cbor) => cbor.walk(chunk, facts),
        }
    }

    /// Number of bytes, at the end of the walked ones, of a token that is incomplete.
    pub(super) fn pending(&self) -> usize {
        match self {
            Self::Json(json) => json.pending(),
            Self::Proto(proto) => proto.pending(),
            Self::Cbor(cbor) => cbor.pending(),
        }
    }

    /// Whether a body may end here.
    pub(super) fn at_boundary(&self) -> bool {
        match self {
            Self::Json(json) => json.at_boundary(),
            Self::Proto(proto) => proto.at_boundary(),
            Self::Cbor(cbor) => cbor.at_boundary(),
        }
    }
}
