//! The messages: heads of requests and responses, content by its framing, and the bytes that both come from.

pub(crate) mod body;
pub(crate) mod inbox;
pub(crate) mod request;
pub(crate) mod response;
