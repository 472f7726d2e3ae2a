//! `bench idle`: what an established connection costs while nothing happens on it.
