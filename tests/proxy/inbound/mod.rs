//! The inbound leg: reviews, and who answers them.

mod certificates;
mod drains;
mod mesh;
mod owners;
mod peers;
mod reviews;
