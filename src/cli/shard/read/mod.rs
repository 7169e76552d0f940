//! What objects of the cluster say, each by itself: roles, releases, schemas.

pub(super) mod release;
pub(super) mod rights;
pub(super) mod schema;
