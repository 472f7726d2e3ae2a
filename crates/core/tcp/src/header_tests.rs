//! Header tables (hex on the left, value on the right, then the round trip), malformed headers, and
//! the property that ties parsing to emitting.

use proptest::prelude::*;

use super::*;
use crate::life::fast_open::FastOpenCookie;
use crate::options::AccurateEcnOption;
use crate::options::{OptionError, SackBlocks};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let text = String::from_utf8(digits).unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn sack(blocks: &[(u32, u32)]) -> SackBlocks {
    blocks.iter().map(|&(l, r)| (Seq(l), Seq(r))).collect()
}

/// Headers and their meaning. Each must be emitted byte for byte; the checksum is 0 here.
fn table() -> Vec<(&'static str, TcpHeader)> {
    let base = TcpHeader { src_port: 0xc350, dst_port: 80, ..TcpHeader::default() };
    let none = TcpOptions::default();
    let syn = |options| TcpHeader { flags: Flags::SYN, window: 64240, options, ..base };
    let ack = |options| {
        let (seq, ack, window) = (Seq(16), Seq(32), 501);
        TcpHeader { seq, ack, flags: Flags::ACK, window, options, ..base }
    };
    vec![
        (
            "c350 0050 00000001 00000000 5004 0000 0000 0000",
            TcpHeader { seq: Seq(1), flags: Flags::RST, ..base },
        ),
        (
            // A SYN as Linux sends it: mss, sackOK, TS, nop, wscale.
            "c350 0050 a1b2c3d4 00000000 a002 faf0 0000 0000
             020405b4 0402080a 00000064 00000000 01030307",
            TcpHeader {
                seq: Seq(0xa1b2_c3d4),
                ..syn(TcpOptions {
                    mss: Some(1460),
                    sack_permitted: true,
                    timestamps: Some((100, 0)),
                    window_scale: Some(7),
                    ..none
                })
            },
        ),
        (
            // With timestamps switched off: mss, nop, nop, sackOK, nop, wscale.
            "c350 0050 00000000 00000000 8002 faf0 0000 0000 020405b4 01010402 01030307",
            syn(TcpOptions {
                mss: Some(1460),
                sack_permitted: true,
                window_scale: Some(7),
                ..none
            }),
        ),
        (
            // With SACK switched off: mss, nop, nop, TS, nop, wscale.
            "c350 0050 00000000 00000000 a002 faf0 0000 0000
             020405b4 0101080a 00000001 00000002 0103030e",
            syn(TcpOptions {
                mss: Some(1460),
                timestamps: Some((1, 2)),
                window_scale: Some(14),
                ..none
            }),
        ),
        (
            // Data: nop, nop, TS.
            "c350 0050 00000010 ffffffff 8018 01f5 0000 0000 0101080a deadbeef 00c0ffee",
            TcpHeader {
                ack: Seq(u32::MAX),
                flags: Flags::PSH.union(Flags::ACK),
                ..ack(TcpOptions { timestamps: Some((0xdead_beef, 0x00c0_ffee)), ..none })
            },
        ),
        (
            // A duplicate acknowledgement: nop, nop, TS, nop, nop, SACK.
            "c350 0050 00000010 00000020 b010 01f5 0000 0000
             0101080a 00000001 00000002 0101050a fffffff0 00000010",
            ack(TcpOptions {
                timestamps: Some((1, 2)),
                sack: sack(&[(0xffff_fff0, 0x10)]),
                ..none
            }),
        ),
        (
            // An acknowledgement with accurate congestion feedback, all three fields, behind a count
            // of 5: nop, nop, TS, AccECN, nop.
            "c350 0050 00000010 00000020 b150 01f5 0000 0000
             0101080a 00000001 00000002 ac0b0005 dd000003 00000101",
            TcpHeader {
                flags: Flags::ACK.union(Flags::AE).union(Flags::ECE),
                ..ack(TcpOptions {
                    timestamps: Some((1, 2)),
                    accurate_ecn: Some(AccurateEcnOption::new([0x5dd, 3, 1], 3, false)),
                    ..none
                })
            },
        ),
        (
            // The same with ECT(1) first, and two fields of three: no fill.
            "c350 0050 00000010 00000020 7010 01f5 0000 0000 ae080000 02000001",
            ack(TcpOptions {
                accurate_ecn: Some(AccurateEcnOption::new([2, 1, 0], 2, true)),
                ..none
            }),
        ),
        (
            // Four blocks fill the header when there are no timestamps.
            "c350 0050 00000010 00000020 e010 01f5 0000 0000 01010522
             00000001 00000002 00000003 00000004 00000005 00000006 00000007 00000008",
            ack(TcpOptions { sack: sack(&[(1, 2), (3, 4), (5, 6), (7, 8)]), ..none }),
        ),
        (
            "c350 0050 00000000 00000000 51ff 0001 0000 0203",
            TcpHeader { flags: Flags::all(), window: 1, urgent: 0x0203, ..base },
        ),
    ]
}

#[test]
fn headers_mean_what_the_table_says_and_come_out_the_same() {
    for (hex, header) in table() {
        let wire = bytes(hex);
        assert_eq!(TcpHeader::parse(&wire), Ok((header, wire.len())), "{hex}");
        let mut out = [0xaa; MAX_HEADER_LEN];
        assert_eq!(header.emit(&mut out), wire.len(), "{hex}");
        assert_eq!(header.len(), wire.len(), "{hex}");
        assert_eq!(out[..wire.len()], wire, "{hex}");
        assert!(out[wire.len()..].iter().all(|b| *b == 0xaa), "nothing behind it is written");
    }
}

#[test]
fn a_header_is_refused_at_every_length_below_its_own_and_taken_from_there_on() {
    let wire = bytes(table()[1].0);
    for len in 0..wire.len() {
        let error = TcpHeader::parse(&wire[..len]).unwrap_err();
        let expected =
            if len < 20 { HeaderError::Truncated } else { HeaderError::DataOffsetBeyondSegment };
        assert_eq!(error, expected, "{len}");
    }
    let mut longer = wire.clone();
    longer.extend([0xff; 9]);
    assert_eq!(TcpHeader::parse(&longer).unwrap(), TcpHeader::parse(&wire).unwrap());
}

#[test]
fn a_data_offset_below_five_is_refused_and_five_and_fifteen_are_taken() {
    let mut wire = [0u8; 60];
    for offset in 0..=15u8 {
        wire[12] = offset << 4;
        let parsed = TcpHeader::parse(&wire).map(|(_, len)| len);
        if offset < 5 {
            assert_eq!(parsed, Err(HeaderError::DataOffsetTooSmall));
        } else {
            assert_eq!(parsed, Ok(usize::from(offset) * 4));
        }
    }
}

#[test]
fn reserved_bits_mean_nothing() {
    let mut wire = bytes(table()[0].0);
    wire[12] |= 0x0e;
    assert_eq!(TcpHeader::parse(&wire).unwrap().0, table()[0].1);
}

#[test]
fn the_checksum_is_left_zero_for_who_knows_the_addresses() {
    let mut out = [0xff; 60];
    TcpHeader::default().emit(&mut out);
    assert_eq!(out[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2], [0, 0]);
}

#[test]
fn nothing_is_written_where_there_is_no_room() {
    let header = table()[1].1;
    let mut out = [0xaa; 39];
    assert_eq!(header.emit(&mut out), 0);
    assert_eq!(out, [0xaa; 39]);
}

/// As Linux: the counts sent beside SACK blocks, by the number of counts that are due.
#[test]
fn counts_of_marked_bytes_take_the_place_of_fill_and_of_sack_blocks_beyond_two() {
    let counts = AccurateEcnOption::new([0x010203, 0x040506, 0x070809], 3, true);
    // With timestamps or without, blocks, counts needed; the bytes without the timestamps and blocks,
    // and the blocks that stay.
    for (stamps, blocks, least, option, stay) in [
        (true, 0, 0, "ae0b0102 03040506 07080901", 0),
        (true, 1, 0, "ae0b0102 03040506 07080901 0101050a", 1),
        (true, 1, 3, "ae0b0102 03040506 07080901 0101050a", 1),
        (true, 2, 2, "ae080102 03040506 01010512", 2),
        (true, 2, 3, "01010512", 2),
        (true, 3, 0, "ae02051a", 3),
        (true, 3, 1, "ae080102 03040506 01010512", 2),
        (true, 3, 2, "ae080102 03040506 01010512", 2),
        (true, 3, 3, "0101051a", 3),
        (false, 3, 3, "ae0b0102 03040506 07080901 0101051a", 3),
        (false, 4, 0, "ae050102 03010522", 4),
        (false, 4, 1, "ae050102 03010522", 4),
        (false, 4, 2, "ae0b0102 03040506 07080901 0101051a", 3),
        (false, 4, 3, "ae0b0102 03040506 07080901 0101051a", 3),
    ] {
        let ranges: Vec<(u32, u32)> = (0..blocks).map(|i| (16 * i + 16, 16 * i + 32)).collect();
        let mut options = TcpOptions { sack: sack(&ranges), ..TcpOptions::default() };
        options.timestamps = stamps.then_some((1, 2));
        options.add_accurate_ecn(counts, least);
        let header = TcpHeader { flags: Flags::ACK, options, ..TcpHeader::default() };
        let mut out = [0; MAX_HEADER_LEN];
        let len = header.emit(&mut out);
        assert_eq!(len, header.len());
        let from = MIN_HEADER_LEN + if stamps { 12 } else { 0 };
        let expected = bytes(option);
        let name = format!("{stamps} {blocks} {least}");
        assert_eq!(out[from..from + expected.len()], expected, "{name}");
        assert_eq!(len, from + expected.len() + 8 * stay, "{name}");
        let (back, _) = TcpHeader::parse(&out[..len]).unwrap();
        assert_eq!(back.options.sack.len(), stay, "{name}");
    }
}

#[test]
fn counts_of_marked_bytes_give_way_to_a_fast_open_cookie() {
    let counts = AccurateEcnOption::new([1, 2, 3], 3, false);
    let syn = |cookie: usize| TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((1, 2)),
        fast_open: FastOpenCookie::from_option(&[7; 16][..cookie], false),
        accurate_ecn: Some(counts),
        ..TcpOptions::default()
    };
    // Beside 20 bytes and the cookie with its fill: room for all fields, for two, for one, whose last
    // byte takes the place of fill, for none at all.
    for (cookie, written) in [(4, Some(3)), (8, Some(2)), (14, Some(1)), (16, None)] {
        let header = TcpHeader { flags: Flags::SYN, options: syn(cookie), ..TcpHeader::default() };
        let mut out = [0; MAX_HEADER_LEN];
        let len = header.emit(&mut out);
        assert!(len <= MAX_HEADER_LEN, "a cookie of {cookie} bytes: {len}");
        let (back, _) = TcpHeader::parse(&out[..len]).unwrap();
        assert_eq!(back.options.fast_open, header.options.fast_open);
        let fields = back.options.accurate_ecn.map(|o| o.counters().iter().flatten().count());
        assert_eq!(fields, written, "a cookie of {cookie} bytes");
    }
}

/// Options, with the flags of the segment, and what is taken from them.
#[test]
fn options_that_are_not_quite_right_are_read_as_linux_reads_them() {
    use OptionError::{LengthBeyondHeader, LengthMissing, LengthTooShort};
    let none = TcpOptions::default();
    let mss = TcpOptions { mss: Some(1460), ..none };
    let stamps = TcpOptions { timestamps: Some((1, 2)), ..none };
    let bad = |options: TcpOptions, error| TcpOptions { malformed: Some(error), ..options };
    for (hex, syn, expected) in [
        // End of list, fill.
        ("00000000", true, none),
        ("01010101", true, none),
        ("00020405b4000000", true, none),
        ("01020405b4000000", true, mss),
        // Lengths of 0 and 1 end the list; what came before counts.
        ("020405b402000000", true, bad(mss, LengthTooShort)),
        ("020405b403010000", true, bad(mss, LengthTooShort)),
        ("08000000020405b4", true, bad(none, LengthTooShort)),
        // A length one byte too long, twice; the kind alone at the end.
        ("02050506", true, bad(none, LengthBeyondHeader)),
        ("020405b4010102ff", true, bad(mss, LengthBeyondHeader)),
        ("01010102", true, bad(none, LengthMissing)),
        // A length that is not the kind's own: skipped, the rest counts.
        ("020305 020405b4 01", true, mss),
        ("02060000 0000 0204 05b4 0000", true, mss),
        ("0809000000010000 00 020405b4 000000", true, mss),
        ("0509000000010000 00 020405b4 000000", true, mss),
        ("0502 0405 0000 0000", true, none),
        // Unknown kinds are skipped.
        ("fe02 fd04 0000 020405b4 0000", true, mss),
        // The last of a kind counts.
        ("02040001 020405b4", true, mss),
        // An MSS of 0 is none.
        ("02040000", true, none),
        // Options of a SYN on another segment.
        ("020405b4 0402 0303 0700 0000", false, none),
        ("080a0000000100000002 0000", false, stamps),
        ("0101080a0000000100000002", false, stamps),
        ("0101080a0000000100000002", true, stamps),
        // A shift beyond 14 counts as 14.
        ("03030f00", true, TcpOptions { window_scale: Some(14), ..none }),
        ("0303ff00", true, TcpOptions { window_scale: Some(14), ..none }),
        ("04020000", true, TcpOptions { sack_permitted: true, ..none }),
        ("04030000", true, none),
    ] {
        assert_eq!(TcpOptions::parse(&bytes(hex), syn), expected, "{hex}");
    }
}

prop_compose! {
    fn options(syn: bool)(
        mss in prop::option::of(1u16..),
        window_scale in prop::option::of(0u8..=14),
        sack_permitted in any::<bool>(),
        timestamps in prop::option::of(any::<(u32, u32)>()),
        blocks in prop::collection::vec(any::<(u32, u32)>(), 0..=4),
        cookie in prop::option::of((prop::collection::vec(any::<u8>(), 0..=16), any::<bool>())),
        counts in prop::option::of((any::<[u32; 3]>(), 0usize..=3, any::<bool>())),
    ) -> TcpOptions {
        TcpOptions {
            mss: mss.filter(|_| syn),
            window_scale: window_scale.filter(|_| syn),
            sack_permitted: sack_permitted && syn,
            timestamps,
            // A SYN has no SACK blocks, and there would be no room for both.
            sack: if syn { SackBlocks::default() } else { sack(&blocks) },
            fast_open: cookie
                .filter(|_| syn)
                .and_then(|(bytes, exp)| FastOpenCookie::from_option(&bytes, exp)),
            accurate_ecn: counts
                .map(|(bytes, len, ect1_first)| AccurateEcnOption::new(bytes, len, ect1_first)),
            malformed: None,
        }
    }
}

fn header() -> impl Strategy<Value = TcpHeader> {
    any::<u16>().prop_flat_map(|bits| {
        let flags = Flags::from_bits_truncate(bits);
        let fixed = any::<(u16, u16, u32, u32, u16, u16)>();
        (fixed, options(flags.contains(Flags::SYN))).prop_map(move |(fixed, options)| {
            let (src_port, dst_port, seq, ack, window, urgent) = fixed;
            let (seq, ack) = (Seq(seq), Seq(ack));
            TcpHeader { src_port, dst_port, seq, ack, flags, window, urgent, options }
        })
    })
}

/// The options of `given` without what the 40 bytes had no room for: counts of marked bytes from the
/// end, and SACK blocks. `len` bytes of header came `back`.
fn trimmed(given: &TcpHeader, back: &TcpHeader, len: usize) -> Result<TcpOptions, TestCaseError> {
    let full = len + 8 > MAX_HEADER_LEN;
    let kept = back.options.sack.len();
    prop_assert!(kept == given.options.sack.len() || full);
    let sack = given.options.sack.iter().take(kept).collect();
    let fields = |options: &TcpOptions| {
        options.accurate_ecn.map_or(0, |option| 1 + option.counters().iter().flatten().count())
    };
    let written = fields(&back.options);
    prop_assert!(written == fields(&given.options) || full);
    let accurate_ecn =
        given.options.accurate_ecn.and_then(|option| Some(option.cut(written.checked_sub(1)?)));
    Ok(TcpOptions { sack, accurate_ecn, ..given.options })
}

proptest! {
    #[test]
    fn what_is_emitted_is_what_is_parsed(header in header()) {
        let mut wire = [0; MAX_HEADER_LEN];
        let len = header.emit(&mut wire);
        prop_assert_eq!(len, header.len());
        prop_assert!((MIN_HEADER_LEN..=MAX_HEADER_LEN).contains(&len) && len % 4 == 0);

        let (back, parsed_len) = TcpHeader::parse(&wire[..len]).unwrap();
        prop_assert_eq!(parsed_len, len);
        prop_assert_eq!(back, TcpHeader { options: trimmed(&header, &back, len)?, ..header });
    }

    #[test]
    fn any_bytes_parse_to_an_error_or_to_a_header_that_survives_the_round_trip(
        mut wire in prop::collection::vec(any::<u8>(), 0..80),
        offset in prop::option::of(5u8..=15),
    ) {
        if let (Some(byte), Some(offset)) = (wire.get_mut(12), offset) {
            *byte = offset << 4;
        }
        if let Ok((mut header, len)) = TcpHeader::parse(&wire) {
            prop_assert!(len <= wire.len());
            header.options.malformed = None;
            let mut out = [0; MAX_HEADER_LEN];
            let n = header.emit(&mut out);
            let (back, _) = TcpHeader::parse(&out[..n]).unwrap();
            prop_assert_eq!(back, TcpHeader { options: trimmed(&header, &back, n)?, ..header });
        }
    }

    #[test]
    fn the_fast_path_for_aligned_timestamps_reads_what_the_slow_path_reads(
        value in any::<u32>(), echo in any::<u32>(), syn in any::<bool>(),
    ) {
        let mut aligned = bytes("0101080a");
        aligned.extend(value.to_be_bytes());
        aligned.extend(echo.to_be_bytes());
        let fast = TcpOptions::parse(&aligned, syn);
        // Four bytes of fill more, and it takes the long way.
        aligned.extend([1; 4]);
        prop_assert_eq!(fast, TcpOptions::parse(&aligned, syn));
    }
}

#[test]
fn sack_blocks_beyond_the_room_are_left_out() {
    let blocks = sack(&[(1, 2), (3, 4), (5, 6), (7, 8)]);
    let options = TcpOptions { timestamps: Some((1, 2)), sack: blocks, ..TcpOptions::default() };
    let header = TcpHeader { flags: Flags::ACK, options, ..TcpHeader::default() };
    assert_eq!(header.len(), 60);
    let mut out = [0; 60];
    header.emit(&mut out);
    let (back, _) = TcpHeader::parse(&out).unwrap();
    assert_eq!(back.options.sack, sack(&[(1, 2), (3, 4), (5, 6)]));
}
