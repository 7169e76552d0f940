//! What the requests of the pod's controller show of it, for its Lease and for `/readyz`.

mod elections;
mod foreign;

pub(in crate::proxy) use self::{elections::Elections, foreign::ForeignWrites};
