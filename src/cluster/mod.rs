//! Our own calls to the API server, by kube's client: access, and objects that are followed.
//!
//! Clients' requests never pass here; the proxy forwards them by itself.

mod access;
mod followed;
mod pages;

pub(crate) use self::access::chain;
pub use self::{
    access::{NoAccess, OwnAccess},
    followed::{Followed, Pauses, Trouble, Update, describe},
    pages::{NotListed, PAGE, Pages, pages},
};
