//! What a change of policy does to live watches.

mod expiring;
mod handing;
