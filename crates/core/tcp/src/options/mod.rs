//! TCP options: the checked iterator over their bytes, and the plain value [`TcpOptions`].
//!
//! Malformed options are handled as in Linux. An option with a length below 2 or beyond the header
//! ends the list; options before it count, and the segment is kept. An option with the wrong length
//! for its kind is skipped. RFC 9293 section 3.1 asks for no more:
//!
//! > TCP implementations MUST be prepared to handle an illegal option length (e.g., zero); a
//! > suggested procedure is to reset the connection and log the error cause (MUST-7).
//!
//! No reset: it would be a weapon for middleboxes. [`TcpOptions::malformed`] reports for a counter.

mod accurate_ecn;

pub use accurate_ecn::AccurateEcnOption;
use accurate_ecn::{KIND_ACCURATE_ECN_0, KIND_ACCURATE_ECN_1};

use crate::life::fast_open::FastOpenCookie;
use crate::limits::{MAX_FAST_OPEN_COOKIE, MAX_WINDOW_SCALE};
use crate::seq::Seq;

/// Ends the list.
pub(crate) const KIND_END: u8 = 0;
/// Fills.
pub(crate) const KIND_NOP: u8 = 1;
/// Maximum segment size (RFC 9293 section 3.2), SYN only.
pub(crate) const KIND_MSS: u8 = 2;
/// Window scale (RFC 7323 section 2), SYN only.
pub(crate) const KIND_WINDOW_SCALE: u8 = 3;
/// SACK permitted (RFC 2018 section 2), SYN only.
pub(crate) const KIND_SACK_PERMITTED: u8 = 4;
/// SACK blocks (RFC 2018 section 3).
pub(crate) const KIND_SACK: u8 = 5;
/// Timestamps (RFC 7323 section 3).
pub(crate) const KIND_TIMESTAMPS: u8 = 8;
/// Fast Open (RFC 7413 section 4.1.1), SYN only.
pub(crate) const KIND_FAST_OPEN: u8 = 34;
/// Experiments (RFC 4727), distinguished by an identifier (RFC 6994).
pub(crate) const KIND_EXPERIMENTAL: u8 = 254;

/// The identifier of Fast Open among the experiments, from before it had a kind of its own.
const FAST_OPEN_EXID: [u8; 2] = [0xf9, 0x89];

/// Two no-ops, kind and length of timestamps: the layout of most segments (RFC 7323 appendix A).
pub(crate) const TIMESTAMPS_ALIGNED: [u8; 4] = [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10];

/// Bytes that options can take: a header of 15 words less the 20 fixed bytes.
pub(crate) const MAX_OPTIONS_LEN: usize = 40;

/// The known options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The longest segment that the sender of a SYN can take, in bytes, without options.
    pub mss: Option<u16>,
    /// The shift of the SYN's sender, at most 14.
    pub window_scale: Option<u8>,
    /// Whether the sender of a SYN understands SACK.
    pub sack_permitted: bool,
    /// Ranges that have arrived beyond the acknowledgement.
    pub sack: SackBlocks,
    /// Value and echo reply.
    pub timestamps: Option<(u32, u32)>,
    /// A Fast Open cookie, or the request for one.
    pub fast_open: Option<FastOpenCookie>,
    /// Counts of marked bytes.
    pub accurate_ecn: Option<AccurateEcnOption>,
    /// Why parsing stopped before the end of the options, if it did. Never emitted.
    pub malformed: Option<OptionError>,
}

/// Up to four SACK blocks `(left edge, right edge)`: the first byte and the one after the last.
#[derive(Clone, Copy, Default)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); Self::MAX],
    len: u8,
}

/// An error in a list of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OptionError {
    /// The header ends after an option's kind.
    #[error("option without a length")]
    LengthMissing,
    /// The length is 0 or 1, less than the kind and the length take.
    #[error("option length below 2")]
    LengthTooShort,
    /// The length reaches beyond the header.
    #[error("option longer than the header")]
    LengthBeyondHeader,
}

impl OptionError {
    /// Name in reports, in snake case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LengthMissing => "tcp_option_length_missing",
            Self::LengthTooShort => "tcp_option_length_too_short",
            Self::LengthBeyondHeader => "tcp_option_length_beyond_header",
        }
    }
}

/// The options of the bytes after the fixed header, each with its kind and the bytes after its length;
/// without fill. Ends after the first error.
struct OptionIter<'a>(&'a [u8]);

impl<'a> OptionIter<'a> {
    fn fail(&mut self, error: OptionError) -> Option<<Self as Iterator>::Item> {
        self.0 = &[];
        Some(Err(error))
    }
}

impl<'a> Iterator for OptionIter<'a> {
    type Item = Result<(u8, &'a [u8]), OptionError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&kind, rest) = self.0.split_first()?;
            match kind {
                // > RFC 9293 section 3.2: This option code indicates the end of the option list.
                // > This might not coincide with the end of the TCP header according to the Data
                // > Offset field.
                KIND_END => {
                    self.0 = &[];
                    return None;
                }
                KIND_NOP => self.0 = rest,
                _ => {
                    let Some((&len, data)) = rest.split_first() else {
                        return self.fail(OptionError::LengthMissing);
                    };
                    let Some(len) = usize::from(len).checked_sub(2) else {
                        return self.fail(OptionError::LengthTooShort);
                    };
                    let Some((data, rest)) = data.split_at_checked(len) else {
                        return self.fail(OptionError::LengthBeyondHeader);
                    };
                    self.0 = rest;
                    return Some(Ok((kind, data)));
                }
            }
        }
    }
}

impl TcpOptions {
    /// Reads options; those that belong into a SYN only count if `syn`.
    #[inline]
    pub fn parse(bytes: &[u8], syn: bool) -> Self {
        let mut options = Self::default();
        // The common case first: nothing but aligned timestamps.
        if let Ok(aligned) = <&[u8; 12]>::try_from(bytes)
            && let Some((&TIMESTAMPS_ALIGNED, stamps)) = aligned.split_first_chunk::<4>()
        {
            options.timestamps = two_words(stamps);
            return options;
        }
        for option in OptionIter(bytes) {
            match option {
                Ok(option) => options.take(option, syn),
                Err(error) => options.malformed = Some(error),
            }
        }
        options
    }

    fn take(&mut self, option: (u8, &[u8]), syn: bool) {
        match option {
            // Linux takes 0 for "not given".
            (KIND_MSS, &[hi, lo]) if syn && (hi, lo) != (0, 0) => {
                self.mss = Some(u16::from_be_bytes([hi, lo]));
            }
            // > RFC 7323 section 2.3: If a Window Scale option is received with a shift.cnt value
            // > larger than 14, the TCP SHOULD log the error but MUST use 14 instead of the
            // > specified value.
            (KIND_WINDOW_SCALE, &[shift]) if syn => {
                self.window_scale = Some(shift.min(MAX_WINDOW_SCALE));
            }
            (KIND_SACK_PERMITTED, &[]) if syn => self.sack_permitted = true,
            (KIND_SACK, data) if !data.is_empty() && data.len().is_multiple_of(8) => {
                self.sack = SackBlocks::default();
                for block in data.chunks_exact(8) {
                    if let Some((left, right)) = two_words(block) {
                        self.sack.push(Seq(left), Seq(right));
                    }
                }
            }
            (KIND_TIMESTAMPS, data) if data.len() == 8 => self.timestamps = two_words(data),
            (kind @ (KIND_ACCURATE_ECN_0 | KIND_ACCURATE_ECN_1), data) => {
                self.accurate_ecn = Some(AccurateEcnOption::parse(kind, data));
            }
            // > RFC 7413 section 4.1.1: Options with invalid Length values or without SYN flag set
            // > MUST be ignored.
            //
            // As Linux: the last one counts, and an invalid even length removes those before it.
            (KIND_FAST_OPEN, data) if syn && data.len().is_multiple_of(2) => {
                self.fast_open = FastOpenCookie::from_option(data, false);
            }
            (KIND_EXPERIMENTAL, &[a, b, ref data @ ..])
                if syn && [a, b] == FAST_OPEN_EXID && data.len().is_multiple_of(2) =>
            {
                self.fast_open = FastOpenCookie::from_option(data, true);
            }
            _ => {}
        }
    }

    /// Bytes that `emit` writes, a multiple of 4.
    pub fn len(&self) -> usize {
        let fit = self.fit();
        self.fixed_len() + fit.ecn_len + sack_len(fit.blocks)
    }

    /// Whether there is nothing to emit.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds counts of marked bytes, at least the first `least` of them. As Linux: as many as fit, if
    /// need be in place of SACK blocks, of which two stay; otherwise none at all.
    pub(crate) fn add_accurate_ecn(&mut self, counts: AccurateEcnOption, least: usize) {
        let room = MAX_OPTIONS_LEN.saturating_sub(self.fixed_len());
        if self.is_of_syn() && room < 4 {
            return;
        }
        let mut blocks = self.sack.len().min(room.saturating_sub(4) / 8);
        loop {
            let (left, fill) = (room - sack_len(blocks), self.fill(blocks));
            let fits = |&fields: &usize| AccurateEcnOption::added_len(fields, fill) <= left;
            if let Some(fields) = (least..=counts.fields()).rev().find(fits) {
                self.accurate_ecn = Some(counts.cut(fields));
                self.sack.truncate(blocks);
                return;
            }
            if blocks <= 2 || least == 0 {
                return;
            }
            blocks -= 1;
        }
    }

    /// Counts and SACK blocks that fit beside the other options. Counts go first, and are left out
    /// from the end (RFC 9768 section 3.2.3).
    #[inline]
    fn fit(&self) -> Fit {
        let room = MAX_OPTIONS_LEN.saturating_sub(self.fixed_len());
        let blocks = |left: usize| self.sack.len().min(left.saturating_sub(4) / 8);
        match &self.accurate_ecn {
            None => Fit { fields: None, ecn_len: 0, blocks: blocks(room) },
            Some(option) => self.fit_ecn(option, room),
        }
    }

    #[cold]
    fn fit_ecn(&self, option: &AccurateEcnOption, room: usize) -> Fit {
        for fields in (0..=option.fields()).rev() {
            // Beside blocks, whose fill holds a part of it, or else alone.
            for with in [true, false] {
                let most = if with { self.sack.len() } else { 0 };
                let ecn_len = AccurateEcnOption::added_len(fields, self.fill(most));
                let left = room.saturating_sub(ecn_len);
                let blocks = most.min(left.saturating_sub(4) / 8);
                if ecn_len <= room && (blocks > 0 || !with) {
                    return Fit { fields: Some(fields), ecn_len, blocks };
                }
            }
        }
        let blocks = self.sack.len().min(room.saturating_sub(4) / 8);
        Fit { fields: None, ecn_len: 0, blocks }
    }

    /// Bytes of fill in one other option that counts may take, beside `blocks` SACK blocks.
    const fn fill(&self, blocks: usize) -> usize {
        match (self.sack_permitted && self.timestamps.is_none(), self.window_scale) {
            (true, _) => 2,
            (false, Some(_)) => 1,
            (false, None) if blocks > 0 => 2,
            (false, None) => 0,
        }
    }

    const fn is_of_syn(&self) -> bool {
        self.mss.is_some()
    }

    /// Bytes of the options that are never left out: 40 at most, with the longest cookie.
    fn fixed_len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        // SACK-permitted takes the place of the fill before timestamps.
        let stamps = match (self.timestamps, self.sack_permitted) {
            (Some(_), _) => 12,
            (None, true) => 4,
            (None, false) => 0,
        };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        mss + stamps + scale + self.fast_open_len()
    }

    /// Bytes that the Fast Open option takes with its fill.
    fn fast_open_len(&self) -> usize {
        let Some(cookie) = &self.fast_open else { return 0 };
        let header = if cookie.is_experimental() { 4 } else { 2 };
        (header + cookie.as_slice().len()).next_multiple_of(4)
    }

    /// Writes the options in Linux's order and with its fill, so that traces look alike:
    ///
    /// ```text
    /// SYN with timestamps     mss, sackOK, TS, AccECN, nop, nop, wscale
    /// SYN without             mss, AccECN, nop, nop, nop, sackOK, nop, wscale
    /// Fast Open behind these  FO, nop, nop
    /// otherwise               nop, nop, TS, AccECN, nop, nop, nop, SACK
    /// ```
    ///
    /// AccECN with one count or none stands in part, or in whole, in place of the fill of sackOK, wscale
    /// or SACK. If 40 bytes are too few, counts of marked bytes and then SACK blocks are left out.
    /// `out` has at least [`len`](Self::len) bytes.
    pub(crate) fn emit(&self, out: &mut [u8]) {
        let mut out = Cursor(out);
        let fit = self.fit();
        if let Some(mss) = self.mss {
            let [hi, lo] = mss.to_be_bytes();
            out.put([KIND_MSS, 4, hi, lo]);
        }
        if let Some((value, echo)) = self.timestamps {
            if self.sack_permitted {
                out.put([KIND_SACK_PERMITTED, 2, KIND_TIMESTAMPS, 10]);
            } else {
                out.put(TIMESTAMPS_ALIGNED);
            }
            out.put(value.to_be_bytes());
            out.put(echo.to_be_bytes());
        }
        let mut fill = [KIND_NOP; 2];
        let mut rest = 0;
        if let (Some(fields), Some(option)) = (fit.fields, &self.accurate_ecn) {
            (fill, rest) = out.put_accurate_ecn(option.cut(fields));
        }
        let mut take_fill = |most: usize| {
            if rest > most {
                return [KIND_NOP; 2];
            }
            rest = 0;
            core::mem::replace(&mut fill, [KIND_NOP; 2])
        };
        if self.sack_permitted && self.timestamps.is_none() {
            let [a, b] = take_fill(2);
            out.put([a, b, KIND_SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            let [a, _] = take_fill(1);
            out.put([a, KIND_WINDOW_SCALE, 3, shift.min(MAX_WINDOW_SCALE)]);
        }
        if fit.blocks > 0 {
            let [a, b] = take_fill(2);
            out.put([a, b, KIND_SACK, 2 + 8 * fit.blocks as u8]);
            for (left, right) in self.sack.iter().take(fit.blocks) {
                out.put(left.get().to_be_bytes());
                out.put(right.get().to_be_bytes());
            }
        } else if rest > 0 {
            let [a, b] = fill;
            out.put([a, b, KIND_NOP, KIND_NOP]);
        }
        self.emit_fast_open(&mut out);
    }

    fn emit_fast_open(&self, out: &mut Cursor<'_>) {
        let Some(cookie) = &self.fast_open else { return };
        let data = cookie.as_slice();
        // The longest is 20 bytes with its fill.
        let mut words = [KIND_NOP; 4 + MAX_FAST_OPEN_COOKIE];
        let header: &[u8] = if cookie.is_experimental() {
            &[KIND_EXPERIMENTAL, 4 + data.len() as u8, FAST_OPEN_EXID[0], FAST_OPEN_EXID[1]]
        } else {
            &[KIND_FAST_OPEN, 2 + data.len() as u8]
        };
        for (place, byte) in words.iter_mut().zip(header.iter().chain(data)) {
            *place = *byte;
        }
        for word in words.as_chunks().0.iter().take(self.fast_open_len() / 4) {
            out.put(*word);
        }
    }
}

/// Bytes of an option with `blocks` SACK blocks.
const fn sack_len(blocks: usize) -> usize {
    if blocks > 0 { 4 + 8 * blocks } else { 0 }
}

/// The options that may be left out, as far as they fit.
#[derive(Clone, Copy, Debug)]
struct Fit {
    /// Counts of marked bytes; `None`: no such option.
    fields: Option<usize>,
    /// Bytes that they add.
    ecn_len: usize,
    /// SACK blocks.
    blocks: usize,
}

/// Two 32-bit words in network order, if there are exactly 8 bytes.
fn two_words(bytes: &[u8]) -> Option<(u32, u32)> {
    let &[a, b, c, d, e, f, g, h] = <&[u8; 8]>::try_from(bytes).ok()?;
    Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
}

/// Writes words of four bytes front to back.
struct Cursor<'a>(&'a mut [u8]);

impl Cursor<'_> {
    fn put(&mut self, word: [u8; 4]) {
        if let Some((at, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut::<4>() {
            *at = word;
            self.0 = rest;
        }
    }

    /// Writes the whole words of the option. Returns what is left, up to two bytes, and its length.
    fn put_accurate_ecn(&mut self, option: AccurateEcnOption) -> ([u8; 2], usize) {
        let (words, rest) = option.words(KIND_NOP);
        for word in words.iter().take(option.fields()) {
            self.put(*word);
        }
        let left = words.get(option.fields()).filter(|_| rest > 0);
        (left.map_or([KIND_NOP; 2], |&[a, b, ..]| [a, b]), rest)
    }
}

impl SackBlocks {
    /// Blocks in one segment: 40 bytes of options hold 4 (3 beside timestamps).
    pub const MAX: usize = 4;

    /// Appends a block; `false` when there is no room.
    pub fn push(&mut self, left: Seq, right: Seq) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = (left, right);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Keeps the first `len` blocks.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u8);
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The blocks in order.
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        self.blocks.get(..self.len()).unwrap_or_default()
    }

    /// The blocks in order.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, Seq)> + '_ {
        self.as_slice().iter().copied()
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

impl core::fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter().map(|(l, r)| l.get()..r.get())).finish()
    }
}

impl FromIterator<(Seq, Seq)> for SackBlocks {
    fn from_iter<I: IntoIterator<Item = (Seq, Seq)>>(blocks: I) -> Self {
        let mut out = Self::default();
        for (left, right) in blocks {
            out.push(left, right);
        }
        out
    }
}
