//! The option of accurate ECN feedback (RFC 9768 section 3.2.3).
//!
//! ```text
//!   kind 172, order 0:  kind | length | EE0B (3 bytes) | ECEB (3) | EE1B (3)
//!   kind 174, order 1:  kind | length | EE1B (3 bytes) | ECEB (3) | EE0B (3)
//! ```
//!
//! Fields may be left out from the end. We send order 1, as Linux. Each is the low 24 bits of a counter of payload bytes.

/// Kind of the option that begins with the bytes marked ECT(0).
pub(super) const KIND_ACCURATE_ECN_0: u8 = 172;
/// Kind of the option that begins with the bytes marked ECT(1).
pub(super) const KIND_ACCURATE_ECN_1: u8 = 174;

/// Fields in a full option.
const FIELDS: usize = 3;
const FIELD_LEN: usize = 3;
/// Bytes of kind and length.
const HEADER_LEN: usize = 2;

/// Payload bytes received in packets with each mark: the low 24 bits of up to three counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccurateEcnOption {
    /// Fields in the order of the wire, big-endian; those behind `len` are 0.
    bytes: [u8; FIELDS * FIELD_LEN],
    /// Fields present.
    len: u8,
    /// EE1B comes first.
    ect1_first: bool,
}

impl AccurateEcnOption {
    /// With the first `len` of the three fields, at most all.
    pub fn new(counters: [u32; FIELDS], len: usize, ect1_first: bool) -> Self {
        let mut option = Self { bytes: [0; 9], len: len.min(FIELDS) as u8, ect1_first };
        for (place, value) in option.bytes.as_chunks_mut().0.iter_mut().zip(counters).take(len) {
            let [_, a, b, c] = value.to_be_bytes();
            *place = [a, b, c];
        }
        option
    }

    /// From what follows kind and length.
    ///
    /// > if the AccECN Option is of any other length, implementations MUST use those whole 3-octet
    /// > fields that fit within the length and ignore the remainder of the option
    pub(crate) fn parse(kind: u8, data: &[u8]) -> Self {
        let mut option = Self { bytes: [0; 9], len: 0, ect1_first: kind == KIND_ACCURATE_ECN_1 };
        let fields: &[[u8; FIELD_LEN]] = data.as_chunks().0;
        for (place, field) in option.bytes.as_chunks_mut().0.iter_mut().zip(fields) {
            *place = *field;
            option.len += 1;
        }
        option
    }

    /// Bytes marked ECT(0), CE and ECT(1), as far as the option holds them.
    pub fn counters(&self) -> [Option<u32>; FIELDS] {
        let len = usize::from(self.len);
        let mut fields = [None; FIELDS];
        for (place, &[a, b, c]) in fields.iter_mut().zip(self.bytes.as_chunks().0).take(len) {
            *place = Some(u32::from_be_bytes([0, a, b, c]));
        }
        if self.ect1_first {
            fields.reverse();
        }
        fields
    }

    /// Fields present.
    pub(crate) const fn fields(&self) -> usize {
        self.len as usize
    }

    /// With the first `fields` fields only.
    pub(crate) fn cut(mut self, fields: usize) -> Self {
        self.len = self.len.min(fields as u8);
        for place in self.bytes.as_chunks_mut::<FIELD_LEN>().0.iter_mut().skip(self.len.into()) {
            *place = [0; FIELD_LEN];
        }
        self
    }

    /// Bytes that an option with `fields` fields adds to a header in whole words. As in Linux, its last
    /// bytes, if no whole word, take the place of up to `fill` bytes of another option's fill.
    pub(crate) const fn added_len(fields: usize, fill: usize) -> usize {
        let len = HEADER_LEN + FIELD_LEN * fields;
        if len % 4 > fill { len.next_multiple_of(4) } else { len - len % 4 }
    }

    /// The option in words with `fill` behind it: as many as it has fields are whole. The number is that of
    /// the bytes in the word behind those, which only an option with one field or none has.
    pub(crate) fn words(&self, fill: u8) -> ([[u8; 4]; 3], usize) {
        let len = FIELD_LEN * self.fields();
        let mut words = [[fill; 4]; 3];
        let option = [self.kind(), (HEADER_LEN + len) as u8];
        let bytes = option.iter().chain(self.bytes.iter().take(len));
        for (place, byte) in words.as_flattened_mut().iter_mut().zip(bytes) {
            *place = *byte;
        }
        (words, HEADER_LEN.saturating_sub(self.fields()))
    }

    const fn kind(&self) -> u8 {
        if self.ect1_first { KIND_ACCURATE_ECN_1 } else { KIND_ACCURATE_ECN_0 }
    }
}
