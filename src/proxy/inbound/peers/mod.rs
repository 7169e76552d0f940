//! The pods that answer for the shards.
//!
//! [`facts`] reads a pod, [`follow`] watches those of the namespace, [`table`] has the usable ones by
//! shard and [`known`] the present table.
//!
//! Hides how pods are watched and chosen. Knows no review: the shard is given.

mod facts;
mod follow;
mod known;
mod table;

pub(in crate::proxy) use self::{
    follow::follow,
    known::Peers,
    table::{Choice, Chosen, Peer, Table},
};

#[cfg(test)]
mod tests;
