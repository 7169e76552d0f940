//! Walkers, one per encoding: down the paths of `place`, past everything else, to the facts.

mod cbor;
mod collect;
mod facts;
mod fault;
mod head;
mod json;
mod place;
mod proto;
mod skip;
mod step;

use self::{cbor::Cbor, json::Json, proto::Proto};
pub(crate) use self::{
    cbor::SELF_DESCRIBED,
    collect::Asked,
    facts::Facts,
    head::Head as CborHead,
    place::Node,
    step::{Mark, Step},
};
pub use self::{
    facts::{Continue, Event, EventKind, ListMeta},
    fault::{Fault, FrameError},
    proto::MAGIC,
};
use crate::media::Encoding;

#[derive(Debug)]
pub(crate) enum Walker {
    Json(Json),
    Proto(Proto),
    Cbor(Cbor),
}

impl Walker {
    /// A walker. `None` for YAML, which is never streamed.
    pub(crate) fn new(encoding: Encoding, root: Node) -> Option<Self> {
        Some(match encoding {
            Encoding::Json => Self::Json(Json::new(root)),
            Encoding::Protobuf => Self::Proto(Proto::new(root)),
            Encoding::Cbor => Self::Cbor(Cbor::new(root)),
            Encoding::Yaml => return None,
        })
    }

    /// Walks to the next step, takes the bytes in front of it off `rest` and returns them.
    pub(crate) fn step<'c>(
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

    pub(crate) fn walk(&mut self, chunk: &[u8], facts: &mut Facts) -> Result<Step, Fault> {
        match self {
            Self::Json(json) => json.walk(chunk, facts),
            Self::Proto(proto) => proto.walk(chunk, facts),
            Self::Cbor(cbor) => cbor.walk(chunk, facts),
        }
    }

    /// Number of bytes, at the end of the walked ones, of a token that is incomplete.
    pub(crate) fn pending(&self) -> usize {
        match self {
            Self::Json(json) => json.pending(),
            Self::Proto(proto) => proto.pending(),
            Self::Cbor(cbor) => cbor.pending(),
        }
    }

    /// Whether a body may end here.
    pub(crate) fn is_between(&self) -> bool {
        match self {
            Self::Json(json) => json.is_between(),
            Self::Proto(proto) => proto.is_between(),
            Self::Cbor(cbor) => cbor.is_between(),
        }
    }
}
