//! `bench stream`: the bulk rate of one connection.
