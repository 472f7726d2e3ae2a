//! `bench rr`: so many bytes there and back.
