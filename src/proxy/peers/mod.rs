//! The pods that answer for the shards, and the way to them.
//!
//! [`facts`] reads a pod, [`mod@follow`] watches those of the namespace, [`table`] has the usable ones by
//! shard and [`known`] the present table and a review's search in it, [`links`] are the connections of one data thread to them.
//!
//! Hides how pods are watched, chosen, dialled and verified. Knows no review: the shard is given,
//! and the request is passed on as it is.

mod dial;
mod facts;
mod failed;
mod follow;
mod known;
mod link;
mod links;
mod table;

pub(crate) use self::{
    failed::{Failed, Reason},
    follow::follow,
    known::{PeerPicker, Peers},
    link::PeerBody,
    links::PeerPool,
    table::Peer,
};

#[cfg(test)]
mod tests;
