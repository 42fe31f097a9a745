use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Answers with prepared datagrams, then with time-outs. A conversation numbers its requests from 1 on.
#[derive(Default)]
pub struct Script {
    pub sent: Vec<Vec<u8>>,
    pub answers: VecDeque<Result<Vec<u8>, Errno>>,
    pub send_error: Option<Errno>,
}

impl Script {
    pub fn new(answers: impl IntoIterator<Item = Result<Vec<u8>, Errno>>) -> Self {
        Self { answers: answers.into_iter().collect(), ..Self::default() }
    }
}

impl Channel for Script {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Errno> {
        self.sent.push(datagram.to_vec());
        self.send_error.map_or(Ok(()), Err)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let answer = self.answers.pop_front().unwrap_or(Err(Errno::EAGAIN))?;
        let len = answer.len().min(buffer.len());
        buffer[..len].copy_from_slice(&answer[..len]);
        Ok(answer.len())
    }
}

/// One message.
pub fn message(kind: u16, flags: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(seq.to_ne_bytes());
    out.extend([0; 4]);
    out.extend(payload);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// `NLMSG_ERROR` as the kernel sends it: the error, then the header of the request.
pub fn refusal(errno: Errno, seq: u32) -> Vec<u8> {
    let mut payload = (-errno.raw()).to_ne_bytes().to_vec();
    payload.extend([0; HEADER]);
    message(ERROR, 0, seq, &payload)
}

/// The end of a dump.
pub fn done(seq: u32) -> Vec<u8> {
    message(DONE, 2, seq, &[0; 4])
}

const KIND: u16 = 0x1401;

fn part(seq: u32, payload: &[u8]) -> Vec<u8> {
    message(KIND, 2, seq, payload)
}

fn dump(answers: Vec<Result<Vec<u8>, Errno>>) -> (Result<Vec<Vec<u8>>, NetlinkError>, usize) {
    let mut conversation = Conversation::new(Script::new(answers));
    let found = conversation.dump(&Request::new(KIND), |payload| Some(payload.to_vec()));
    (found, conversation.channel.sent.len())
}

#[test]
#[cfg(target_endian = "little")]
fn requests_are_the_bytes_of_the_kernel_interface() {
    let mut out = Vec::new();
    Request::new(0x140f).u32(1, 7).string(69, "uverbs").append_to(&mut out, 0, 9);
    #[rustfmt::skip]
    assert_eq!(out, [
        36, 0, 0, 0,  0x0f, 0x14, 0x01, 0x00,  9, 0, 0, 0,  0, 0, 0, 0, // length, type, NLM_F_REQUEST, seq, port
        8, 0, 1, 0,  7, 0, 0, 0,                                        // DEV_INDEX
        11, 0, 69, 0,  b'u', b'v', b'e', b'r', b'b', b's', 0,  0,       // CHARDEV_TYPE, padded
    ]);
    let mut conversation = Conversation::new(Script::new([Ok(done(1))]));
    conversation.dump(&Request::new(KIND), |_| Some(())).unwrap();
    #[rustfmt::skip]
    assert_eq!(conversation.channel.sent, [[
        16, 0, 0, 0,  0x01, 0x14, 0x01, 0x03,  1, 0, 0, 0,  0, 0, 0, 0, // NLM_F_REQUEST | NLM_F_DUMP
    ]]);
}

#[test]
fn a_dump_in_several_datagrams_is_put_together() {
    let two = [part(1, b"aaaa"), part(1, b"bbbb")].concat();
    let (found, sent) = dump(vec![Ok(two), Ok(vec![]), Ok(part(1, b"cccc")), Ok(done(1))]);
    assert_eq!(found.unwrap(), [b"aaaa", b"bbbb", b"cccc"]);
    assert_eq!(sent, 1);
    // Everything in one datagram, and a done message without a status.
    let one = [part(1, b"aaaa"), message(DONE, 2, 1, &[])].concat();
    assert_eq!(dump(vec![Ok(one)]).0.unwrap(), [b"aaaa"]);
}

#[test]
fn messages_that_are_not_the_answer_are_skipped() {
    let stray = [part(77, b"xxxx"), message(1, 0, 1, b"noop"), part(1, b"aaaa"), done(77)].concat();
    let (found, _) = dump(vec![Ok(stray), Ok(done(1))]);
    assert_eq!(found.unwrap(), [b"aaaa"]);
}

#[test]
fn an_interrupted_dump_is_asked_for_again() {
    let torn = message(KIND, 2 | F_DUMP_INTR, 1, b"torn");
    let (found, sent) = dump(vec![Ok(torn), Ok(done(1)), Ok(part(2, b"good")), Ok(done(2))]);
    assert_eq!((found.unwrap(), sent), (vec![b"good".to_vec()], 2));
    // The kernel also tells in the last message only.
    let (found, sent) = dump(vec![
        Ok(part(1, b"torn")),
        Ok(message(DONE, 2 | F_DUMP_INTR, 1, &[0; 4])),
        Ok(part(2, b"good")),
        Ok(done(2)),
    ]);
    assert_eq!((found.unwrap(), sent), (vec![b"good".to_vec()], 2));
    // For ever: a few tries, then the truth.
    let never = (1..100).map(|seq| Ok(message(DONE, F_DUMP_INTR, seq, &[0; 4]))).collect();
    assert_eq!(dump(never), (Err(NetlinkError::Interrupted), DUMP_TRIES));
}

#[test]
fn what_was_lost_on_the_way_is_asked_for_again() {
    let cut = vec![0; BUFFER + 1];
    let (found, sent) = dump(vec![Ok(cut), Ok(done(1)), Ok(part(2, b"good")), Ok(done(2))]);
    assert_eq!((found.unwrap(), sent), (vec![b"good".to_vec()], 2));
    let (found, sent) = dump(vec![Err(Errno::ENOBUFS), Ok(done(1)), Ok(part(2, b"good")), Ok(done(2))]);
    assert_eq!((found.unwrap(), sent), (vec![b"good".to_vec()], 2));
    let busy = Ok(refusal(Errno::EBUSY, 1));
    assert_eq!(dump(vec![busy, Ok(part(2, b"good")), Ok(done(2))]).0.unwrap(), [b"good"]);
}

#[test]
fn a_refused_dump_keeps_its_error_number() {
    assert_eq!(dump(vec![Ok(refusal(Errno::EPERM, 1))]).0, Err(NetlinkError::Kernel(Errno::EPERM)));
    let failed = message(DONE, 2, 1, &(-libc::ENOMEM).to_ne_bytes());
    assert_eq!(dump(vec![Ok(failed)]).0, Err(NetlinkError::Kernel(Errno::ENOMEM)));
    assert_eq!(dump(vec![Ok(message(ERROR, 0, 1, &[1, 2]))]).0, Err(NetlinkError::Malformed));
    assert_eq!(dump(vec![Ok(part(1, b"aaaa"))]).0, Err(NetlinkError::TimedOut));
    assert_eq!(dump(vec![Err(Errno::EINTR), Ok(done(1))]).0, Ok(vec![]));
    assert_eq!(dump(vec![Err(Errno::EBADF)]).0, Err(NetlinkError::Kernel(Errno::EBADF)));
    let mut conversation = Conversation::new(Script { send_error: Some(Errno::EPERM), ..Script::default() });
    let refused = NetlinkError::Kernel(Errno::EPERM);
    assert_eq!(conversation.dump(&Request::new(KIND), |_| Some(())), Err(refused));
    assert_eq!(conversation.ask(&[Request::new(KIND), Request::new(KIND)]), [Err(refused), Err(refused)]);
}

#[test]
fn answers_are_matched_to_questions() {
    let answers = [
        Ok(message(KIND, 0, 3, b"cccc")),
        Ok([message(KIND, 0, 1, b"aaaa"), message(KIND, 0, 1, b"twice"), message(KIND, 0, 99, b"stray")].concat()),
        Ok(refusal(Errno::EINVAL, 2)),
    ];
    let mut conversation = Conversation::new(Script::new(answers));
    let answers = conversation.ask(&[Request::new(KIND), Request::new(KIND), Request::new(KIND)]);
    assert_eq!(answers, [Ok(b"aaaa".to_vec()), Err(NetlinkError::Kernel(Errno::EINVAL)), Ok(b"cccc".to_vec())]);
    assert_eq!(conversation.channel.sent.len(), 1);
    // One that never comes leaves the others alone.
    conversation.channel.answers.push_back(Ok(message(KIND, 0, 5, b"bbbb")));
    let answers = conversation.ask(&[Request::new(KIND), Request::new(KIND)]);
    assert_eq!(answers, [Err(NetlinkError::TimedOut), Ok(b"bbbb".to_vec())]);
}

#[test]
fn many_questions_are_sent_in_batches() {
    let answers = (1..=40).map(|seq| Ok(message(KIND, 0, seq, &seq.to_ne_bytes())));
    let mut conversation = Conversation::new(Script::new(answers));
    let answers = conversation.ask(&vec![Request::new(KIND); 40]);
    assert_eq!(conversation.channel.sent.len(), 40usize.div_ceil(BATCH));
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), (i as u32 + 1).to_ne_bytes());
    }
    assert_eq!(conversation.ask(&[]), []);
}

#[test]
fn an_endless_answer_ends() {
    struct Endless;
    impl Channel for Endless {
        fn send(&mut self, _: &[u8]) -> Result<(), Errno> {
            Ok(())
        }
        fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
            let part = part(1, b"more");
            buffer[..part.len()].copy_from_slice(&part);
            Ok(part.len())
        }
    }
    let outcome = Conversation::new(Endless).dump(&Request::new(KIND), |_| None::<()>);
    assert_eq!(outcome, Err(NetlinkError::TimedOut));
}

#[test]
fn lengths_that_cannot_be_end_the_list() {
    for (bytes, good) in [
        (vec![1, 2, 3], 0),
        (message(KIND, 0, 1, b"abcd")[..18].to_vec(), 0),
        ([message(KIND, 0, 1, b"abcd"), vec![0; 16]].concat(), 1),
        ([message(KIND, 0, 1, b"abcd"), vec![0xff; 16]].concat(), 1),
        ([message(KIND, 0, 1, b""), message(KIND, 0, 2, b"x")[..17].to_vec()].concat(), 2),
    ] {
        let messages: Vec<_> = Messages(&bytes).collect();
        assert_eq!(messages.iter().filter(|m| m.is_ok()).count(), good, "{bytes:?}");
        assert!(messages.len() - good <= 1);
    }
    for (bytes, good) in [
        (&[8, 0, 1, 0, 1, 2, 3, 4][..], 1),
        (&[5, 0, 1, 0, 1], 1), // the last one may lack its padding
        (&[3, 0, 1, 0], 0),    // shorter than its own header
        (&[9, 0, 1, 0, 1, 2, 3, 4], 0),
        (&[4, 0, 1, 0, 4, 0, 2, 0], 2),
        (&[4, 0, 1, 0, 4], 1),
    ] {
        let attributes: Vec<_> = Attributes(bytes).collect();
        assert_eq!(attributes.iter().filter(|a| a.is_ok()).count(), good, "{bytes:?}");
    }
    // Flag bits are not part of the number.
    assert_eq!(Attributes(&[4, 0, 7, 0xc0]).next(), Some(Ok((7, &[][..]))));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let read: usize = Messages(&bytes).flatten().map(|m| HEADER + m.payload.len()).sum();
        prop_assert!(read <= bytes.len());
        let read: usize = Attributes(&bytes).flatten().map(|(_, value)| ATTR_HEADER + value.len()).sum();
        prop_assert!(read <= bytes.len());
    }

    #[test]
    fn arbitrary_answers_end(
        answers in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..8),
        kind in 0u16..20,
        seq in 0u32..4,
    ) {
        // Some of them well-formed enough to get further in.
        let answers = answers.into_iter().map(|payload| {
            Ok(if payload.len() % 2 == 0 { message(kind, payload.len() as u16, seq, &payload) } else { payload })
        });
        let mut conversation = Conversation::new(Script::new(answers));
        let _ = conversation.dump(&Request::new(KIND), |payload| Some(payload.len()));
        prop_assert_eq!(conversation.ask(&[Request::new(KIND)]).len(), 1);
    }

    #[test]
    fn what_is_built_is_taken_apart(values in proptest::collection::vec((0u16..0x3fff, any::<u32>()), 0..20)) {
        let request = values.iter().fold(Request::new(KIND), |r, &(kind, value)| r.u32(kind, value));
        let mut out = Vec::new();
        request.append_to(&mut out, 0, 5);
        let messages: Vec<_> = Messages(&out).map(Result::unwrap).collect();
        prop_assert_eq!(messages.len(), 1);
        let back: Vec<_> =
            Attributes(messages[0].payload).map(|a| a.unwrap()).map(|(k, v)| (k, u32_at(v, 0).unwrap())).collect();
        prop_assert_eq!(back, values);
    }
}
