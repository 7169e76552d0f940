//! The resource versions that a client may resume from.
//!
//! A watch resumes from a position that the client was shown. If the scope of the resource
//! changed since, the client's store belongs to the old scope and must be listed again. So for
//! each resource there is a floor F: the highest position shown to any client under an older
//! scope. A resumption at or below F is refused with 410, unless the very connection was given a
//! complete list at that position under the present scope. The scopes that its client may have are
//! remembered, so that a watch can be brought over from all of them instead.
//!
//! Positions are shared by all threads. The hot path is safe without a lock because of the order of
//! the write and the read in [`Position::show`], and of the two in a change.

mod by_resource;
mod floor;
mod former;
mod grants;
mod past;
mod position;

pub(super) use self::{
    by_resource::Positions,
    floor::Floor,
    former::{Former, FormerSharding, Marks, Shown},
    grants::Grants,
    past::{Past, Resume},
    position::Position,
};
