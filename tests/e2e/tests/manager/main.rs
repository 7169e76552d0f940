//! The manager in front of real API servers: what it makes, what it signs and for whom, what becomes
//! of it when replicas and objects go.

mod leaves;
mod objects;
mod replicas;
mod scene;
