//! The redirect rules of a pod, as data.
