//! Seeds of the vhost-user targets: an honest guest, an honest front end, and what each field of theirs
//! could be instead.

use super::packets::bent;

/// Where the fuzzed guest has its memory; where its transmit ring and its buffers lie in it.
const GUEST: u64 = 0x1000;
const TRANSMIT: usize = 1024;
const BUFFERS: usize = 0x8000;

/// One step: what to do after so many bytes were written.
fn step(what: u8, at: usize, bytes: &[u8]) -> Vec<u8> {
    let [low, high] = ((at / 8) as u16).to_le_bytes();
    [&[what, low, high, bytes.len() as u8], bytes].concat()
}

fn desc(at: usize, len: u32, flags: u16, next: u16) -> Vec<u8> {
    let addr = GUEST + at as u64;
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
        .concat()
}

fn avail(ring: usize, index: u16, heads: &[u16]) -> Vec<u8> {
    let words: Vec<u16> = [0, index].into_iter().chain(heads.iter().copied()).collect();
    step(0, ring + 256, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

/// Steps of a device and its guest.
fn virtqueues(frame: &[u8]) -> Vec<Vec<u8>> {
    let len = 12 + frame.len() as u32;
    let fill = step(0, BUFFERS, &[&[0; 12], frame].concat());
    let sends = |descs: &[u8], heads: &[u16]| {
        let index = heads.len() as u16;
        [&[0xff, 1], &fill[..], &step(0, TRANSMIT, descs), &avail(TRANSMIT, index, heads)].concat()
    };
    let receive = step(1, 0, &[]);
    let one = desc(BUFFERS, len, 0, 0);
    let mut all: Vec<Vec<u8>> = bent(&one, &[(0, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 2)])
        .into_iter()
        .map(|desc| [sends(&desc, &[0]), receive.clone()].concat())
        .collect();
    let chain =
        [desc(BUFFERS, 12, 1, 1), desc(BUFFERS + 12, 42, 1, 2), desc(BUFFERS + 54, len - 54, 0, 0)]
            .concat();
    all.push([sends(&chain, &[0]), receive.clone()].concat());
    // By reference, and kept while the ring is set up anew and goes on.
    let long = desc(BUFFERS, 3000, 0, 0);
    let restart = step(7, 0, &[]);
    all.push([sends(&long, &[0]), receive.clone(), restart.clone(), receive.clone()].concat());
    // Made available twice, beyond the table, further than the ring is long.
    for heads in [&[0, 0][..], &[16], &[0; 17]] {
        let again = [receive.clone(), restart.clone(), receive.clone()].concat();
        all.push([sends(&long, heads), again].concat());
    }
    // Through a table, which loops.
    for next in [0, 1, 2] {
        let table = [desc(BUFFERS, 12, 1, next), desc(BUFFERS + 12, len - 12, 0, 0)].concat();
        let table = step(0, BUFFERS + 4096, &table);
        let at = desc(BUFFERS + 4096, 32, 4, 0);
        all.push([sends(&at, &[0]), table, receive.clone()].concat());
    }
    // Into its buffers: whole, merged, too small.
    for room in [2048, 100, 12, 5] {
        let buffers: Vec<u8> = (0..4).flat_map(|i| desc(BUFFERS + i * 2048, room, 2, 0)).collect();
        let ready = [step(0, 0, &buffers), avail(0, 4, &[0, 1, 2, 3])].concat();
        let send = |what| step(what, BUFFERS + 0x4000, frame);
        all.push([&[0xff, 0][..], &ready, &send(2), &send(6), &send(2)].concat());
    }
    all
}

/// A front end's set-up: code, flags, what comes along, length, body.
fn messages() -> Vec<Vec<u8>> {
    let say =
        |code: u8, along: u8, body: &[u8]| [&[code, 1, along, body.len() as u8], body].concat();
    let words32 = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let words64 = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let user = 0x7000_0000_u64;
    let region = words64(&[GUEST, 1 << 16, user, 0]);
    let table = [words32(&[1, 0]), region.clone()].concat();
    let mut steps = vec![
        say(3, 0, &[]),
        say(1, 0, &[]),
        say(15, 0, &[]),
        say(16, 0, &words64(&[1 | 1 << 3 | 1 << 13 | 1 << 15])),
        say(2, 0, &words64(&[1 << 32 | 1 << 30 | 1 << 28])),
        say(17, 0, &[]),
        say(36, 0, &[]),
        say(5, 5, &table),
    ];
    for index in [0, 1] {
        let at = user + u64::from(index) * 1024;
        let addr = [words32(&[index, 0]), words64(&[at, at + 320, at + 256, 0])].concat();
        steps.extend([
            say(8, 0, &words32(&[index, 16])),
            say(10, 0, &words32(&[index, 0])),
            say(9, 0, &addr),
            say(13, 3, &words64(&[u64::from(index)])),
            say(14, 3, &words64(&[u64::from(index)])),
            say(12, 3, &words64(&[u64::from(index)])),
            say(18, 0, &words32(&[index, 1])),
        ]);
    }
    let later = [
        say(37, 5, &[words64(&[0, 1 << 40, 4096, 1 << 41, 0])].concat()),
        say(38, 0, &[words64(&[0, 1 << 40, 4096, 1 << 41, 0])].concat()),
        say(11, 0, &words32(&[1, 0])),
        say(34, 0, &[]),
        say(4, 0, &[]),
    ];
    let whole = steps.concat();
    let mut all: Vec<Vec<u8>> = (0..=steps.len()).map(|upto| steps[..upto].concat()).collect();
    all.extend(later.iter().map(|step| [&whole[..], step].concat()));
    // Every field of every message.
    for (place, step) in steps.iter().enumerate().filter(|(_, step)| step.len() > 4) {
        let fields: Vec<_> = (0..step.len()).step_by(4).map(|at| (at, 2)).collect();
        for bent in bent(step, &fields) {
            let mut told = steps.clone();
            told[place] = bent;
            all.push(told.concat());
        }
    }
    all
}

/// Pieces of a stream, each behind its length; of no length: zeros.
fn streams(frame: &[u8]) -> Vec<Vec<u8>> {
    let framed = |frame: &[u8]| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
    let pieces = |stream: &[u8], size: usize| {
        let piece = |piece: &[u8]| [&[piece.len() as u8][..], piece].concat();
        stream.chunks(size).flat_map(piece).collect::<Vec<u8>>()
    };
    let both = [framed(frame), framed(frame)].concat();
    let mut all: Vec<_> = [1, 3, 60, 255].map(|size| pieces(&both, size)).to_vec();
    for length in [0_u32, 13, 14, 1500, 4000, 65_553, 65_554, u32::MAX] {
        let stream = [&both[..], &length.to_be_bytes()].concat();
        all.push([pieces(&stream, 200), vec![0, 0, 4, 1, 2, 3, 4]].concat());
    }
    all
}

/// Datagrams, each behind its sender and its length.
fn datagrams(frame: &[u8]) -> Vec<Vec<u8>> {
    let say = |who: u8, what: &[u8]| [&[who, what.len() as u8], what].concat();
    let hello = &b"VFKT"[..];
    vec![
        [say(0, hello), say(0, frame), say(1, frame), say(2, frame)].concat(),
        [say(0, frame), say(2, hello), say(2, frame), say(1, hello), say(1, frame)].concat(),
        [say(0, hello), say(1, hello), say(0, frame), say(1, frame), say(1, b"short")].concat(),
        [say(0, hello), say(0, hello), say(0, b""), say(0, &[7; 255])].concat(),
    ]
}

/// Everything here: the target, a name, the inputs. `frame` is any frame.
pub(super) fn seeds(frame: &[u8]) -> [(&'static str, &'static str, Vec<Vec<u8>>); 4] {
    [
        ("frames_stream", "pieces", streams(frame)),
        ("frames_datagram", "senders", datagrams(frame)),
        ("virtqueue", "guest", virtqueues(frame)),
        ("vhost_messages", "front-end", messages()),
    ]
}
