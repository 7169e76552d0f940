//! Our own calls to the API server, by kube's client: access, and reflectors of objects.
//!
//! Clients' requests never pass here; the proxy forwards them by itself.

mod access;
mod pages;
mod reflector;

pub use self::{
    access::{NoAccess, OwnAccess, chain},
    pages::{NotListed, PAGE, Pages, pages},
    reflector::{ExponentialBackoff, Reflector, Update, WatchError, describe},
};
