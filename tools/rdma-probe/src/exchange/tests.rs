use super::*;
use crate::payload::Role;
use crate::wire::{END, XrcNumbers};
use ironverbs::{Gid, Lid, Psn, Qpn, Srqn};
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Instant;

const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// The same, of any port.
const HERE: SocketAddr = SocketAddr::new(LOCALHOST, 0);

fn limits(ms: u64) -> Limits {
    Limits { connect: Duration::from_millis(ms), silence: Duration::from_millis(ms) }
}

/// Of what is to come: no machine is busy for so long.
fn ample() -> Limits {
    limits(20_000)
}

fn address(n: u32) -> Address {
    let (qpn, psn) = (Qpn::new(n).unwrap(), Psn::new(n * 2).unwrap());
    Address { lid: Lid(n as u16), qpn, psn, gid: Gid([n as u8; 16]), xrc: None }
}

fn one(addresses: Vec<Address>) -> Address {
    assert_eq!(addresses.len(), 1);
    addresses[0]
}

/// Runs our client against a server made of `serve`, which says something.
fn client_against(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    client_within(ample(), serve)
}

fn client_within(limits: Limits, serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0));
    let stop = Stop::never().unwrap();
    let answer = Conversation::connect("127.0.0.1", port, limits, &stop)?.client(Record::Plain, &[address(7)]);
    server.join().unwrap();
    answer.map(|(remote, _)| one(remote))
}

/// Runs our server against a client made of `talk`, which comes to nothing; nobody else comes.
fn server_against(talk: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    server_within(Limits { connect: Duration::from_millis(500), silence: Duration::from_millis(200) }, talk)
}

fn server_within(limits: Limits, talk: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let stream = TcpStream::connect(listener.local()).unwrap();
    let client = thread::spawn(move || talk(stream));
    let stop = Stop::never().unwrap();
    let answer = listener
        .client((1, Record::Plain), limits, &stop, None)
        .map_err(trouble)
        .and_then(|(conversation, a)| conversation.server_answer(Record::Plain, &[address(9)]).map(|_| one(a)));
    client.join().unwrap();
    answer
}

/// What was wrong with the only caller.
fn trouble(error: ExchangeError) -> ExchangeError {
    match error {
        ExchangeError::NobodyCame { last: Some(trouble), .. } => *trouble,
        other => panic!("{other}"),
    }
}

/// One unlooped read, as the C tools do it.
fn read_once(stream: &mut TcpStream, need: usize) -> Vec<u8> {
    let mut buf = [0; 256];
    let n = stream.read(&mut buf).unwrap();
    assert_eq!(n, need, "a C peer would give up");
    buf[..n].to_vec()
}

/// Keeps the connection open until the other side has seen enough.
fn until_closed(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn client_follows_the_c_server() {
    let remote = client_against(|mut s| {
        assert_eq!(read_once(&mut s, Record::Plain.bytes()), Record::Plain.encode(&[address(7)]));
        s.write_all(&Record::Plain.encode(&[address(9)])).unwrap();
        assert_eq!(read_once(&mut s, 5), DONE);
    });
    assert_eq!(remote.unwrap(), address(9));
}

#[test]
fn server_follows_the_c_client() {
    let remote = server_within(ample(), |mut s| {
        s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
        assert_eq!(read_once(&mut s, Record::Plain.bytes()), Record::Plain.encode(&[address(9)]));
        s.write_all(DONE).unwrap();
    });
    assert_eq!(remote.unwrap(), address(7));
}

#[test]
fn a_record_may_come_in_pieces() {
    let remote = server_within(ample(), |mut s| {
        for piece in Record::Plain.encode(&[address(7)]).chunks(5) {
            s.write_all(piece).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        read_once(&mut s, Record::Plain.bytes());
        s.write_all(b"do").unwrap();
        thread::sleep(Duration::from_millis(2));
        s.write_all(b"ne\0").unwrap();
    });
    assert_eq!(remote.unwrap(), address(7));
}

#[test]
fn garbage_is_told_before_52_bytes_of_it_came() {
    let begin = Instant::now();
    let limits = Limits { connect: Duration::from_millis(500), silence: Duration::from_secs(60) };
    let error = server_within(limits, |mut s| {
        s.write_all(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
        until_closed(s);
    });
    assert!(matches!(error, Err(ExchangeError::Garbage { source: RecordError::Digit { at: 1, .. }, .. })), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn silence_ends_at_the_deadline() {
    let error = server_against(until_closed);
    assert!(matches!(error, Err(ExchangeError::Silent { got: 0, need: 52, .. })), "{error:?}");
    let error = server_against(|mut s| {
        s.write_all(b"beef:00").unwrap();
        until_closed(s);
    });
    assert!(matches!(error, Err(ExchangeError::Silent { got: 7, need: 52, .. })), "{error:?}");
    let error = client_within(limits(200), until_closed);
    assert!(matches!(error, Err(ExchangeError::Silent { got: 0, need: 52, .. })), "{error:?}");
}

#[test]
fn dribbling_does_not_move_the_deadline() {
    let begin = Instant::now();
    let error = server_against(|mut s| {
        for _ in 0..Record::Plain.bytes() {
            if s.write_all(b"0").is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(60));
        }
    });
    assert!(matches!(error, Err(ExchangeError::Silent { .. })), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn an_early_close_is_told_at_every_step() {
    let error = server_against(drop);
    assert!(matches!(error, Err(ExchangeError::Closed { got: 0, need: 52, .. })), "{error:?}");
    let error = server_against(|mut s| s.write_all(b"beef:00").unwrap());
    assert!(matches!(error, Err(ExchangeError::Closed { got: 7, need: 52, .. })), "{error:?}");
    let error = server_within(ample(), |mut s| {
        s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
        read_once(&mut s, Record::Plain.bytes());
        s.write_all(b"don").unwrap();
    });
    assert!(matches!(error, Err(ExchangeError::Closed { got: 3, need: 5, .. })), "{error:?}");
    let error = client_against(|mut s| {
        read_once(&mut s, Record::Plain.bytes());
    });
    assert!(matches!(error, Err(ExchangeError::Closed { got: 0, need: 52, .. })), "{error:?}");
}

#[test]
fn another_last_word_is_refused() {
    let error = server_within(ample(), |mut s| {
        s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
        read_once(&mut s, Record::Plain.bytes());
        s.write_all(b"DONE\0").unwrap();
        until_closed(s);
    });
    assert!(matches!(error, Err(ExchangeError::Unexpected { .. })), "{error:?}");
}

#[test]
fn nobody_comes() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let stop = Stop::never().unwrap();
    let error = listener.client((1, Record::Plain), limits(20), &stop, None).err();
    assert!(matches!(error, Some(ExchangeError::NobodyCame { last: None, .. })), "{error:?}");
}

#[test]
fn a_taken_port_is_told() {
    let taken = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    match Listener::bind(Some(HERE), port) {
        Err(ExchangeError::Listen { source, .. }) => assert_eq!(source.kind(), ErrorKind::AddrInUse),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_refused_connection_is_tried_again_for_a_moment() {
    // A port that was just free.
    let port = TcpListener::bind((LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(120));
        let stop = Stop::never().unwrap();
        let listener = Listener::bind(Some(HERE), port).unwrap();
        let (c, _) = listener.client((1, Record::Plain), limits(2000), &stop, None).unwrap();
        c.server_answer(Record::Plain, &[address(9)]).unwrap();
    });
    let stop = Stop::never().unwrap();
    let client = Conversation::connect("127.0.0.1", port, limits(2000), &stop).unwrap();
    assert_eq!(client.client(Record::Plain, &[address(7)]).unwrap().0, [address(9)]);
    late.join().unwrap();

    match Conversation::connect("127.0.0.1", port, limits(100), &stop) {
        Err(ExchangeError::Connect { source, .. }) => assert_eq!(source.kind(), ErrorKind::ConnectionRefused),
        other => panic!("{:?}", other.err()),
    };
}

#[test]
fn an_unknown_host_is_told() {
    let stop = Stop::never().unwrap();
    let error = Conversation::connect("no such host.invalid", 1, limits(5000), &stop).err();
    assert!(matches!(error, Some(ExchangeError::Resolve { .. })), "{error:?}");
}

#[test]
fn many_records_are_exchanged_whole() {
    let many = |from: u32| (from..from + 256).map(address).collect::<Vec<_>>();
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let port = listener.local().port();
    let server = thread::spawn(move || {
        let stop = Stop::never().unwrap();
        let (c, remote) = listener.client((256, Record::Plain), limits(2000), &stop, None).unwrap();
        c.server_answer(Record::Plain, &many(2000)).unwrap();
        remote
    });
    let stop = Stop::never().unwrap();
    let client = Conversation::connect("127.0.0.1", port, limits(2000), &stop).unwrap();
    assert_eq!(client.client(Record::Plain, &many(1000)).unwrap().0, many(2000));
    assert_eq!(server.join().unwrap(), many(1000));
}

/// One record where 256 are due is the other tools' way.
#[test]
fn a_peer_of_another_transport_is_told() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let mut s = TcpStream::connect(listener.local()).unwrap();
    s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
    let error = listener.client((256, Record::Plain), limits(100), &Stop::never().unwrap(), None).err().unwrap();
    let failure = crate::failure::Failure::from(error);
    assert!(
        failure.to_string().contains("52 of the 13312") && failure.to_string().contains("--transport"),
        "{failure}"
    );

    let error = server_against(|mut s| {
        s.write_all(&Record::Plain.encode(&[address(7), address(8)])).unwrap();
        until_closed(s);
    });
    let failure = crate::failure::Failure::from(error.unwrap_err());
    assert!(failure.to_string().contains("--transport srq"), "{failure}");
}

/// More than are listened to at once.
const CROWD: usize = 150;

/// The client, whose record is in time, and a crowd that says nothing, half of it or something else.
fn client_in_a_crowd(client_is_first: bool) {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let local = listener.local();
    let first = client_is_first.then(|| {
        let mut s = TcpStream::connect(local).unwrap();
        s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
        s
    });
    let mut others: Vec<TcpStream> = (0..CROWD).map(|_| TcpStream::connect(local).unwrap()).collect();
    for (i, other) in others.iter_mut().enumerate() {
        let said: &[u8] = if i % 10 == 9 { b"GET / HTTP/1.1\r\n" } else { [&b""[..], b"beef:00"][i % 2] };
        other.write_all(said).unwrap();
    }
    let client = thread::spawn(move || {
        let mut s = first.unwrap_or_else(|| {
            let mut s = TcpStream::connect(local).unwrap();
            thread::sleep(Duration::from_millis(50));
            s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
            s
        });
        read_once(&mut s, Record::Plain.bytes());
        s.write_all(DONE).unwrap();
    });
    let stop = Stop::never().unwrap();
    let begin = Instant::now();
    let (conversation, remote) = listener.client((1, Record::Plain), limits(60_000), &stop, None).unwrap();
    conversation.server_answer(Record::Plain, &[address(9)]).unwrap();
    client.join().unwrap();
    assert_eq!(one(remote), address(7));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn others_do_not_keep_a_client_waiting() {
    client_in_a_crowd(false);
    client_in_a_crowd(true);
}

#[test]
fn silent_callers_end_at_the_deadline_one_and_all() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let local = listener.local();
    let others: Vec<TcpStream> = (0..CROWD).map(|_| TcpStream::connect(local).unwrap()).collect();
    let begin = Instant::now();
    let error = listener.client((1, Record::Plain), limits(100), &Stop::never().unwrap(), None).err().map(trouble);
    assert!(matches!(error, Some(ExchangeError::Silent { got: 0, .. })), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    drop(others);
}

/// Somebody who looks whether the port is open, asks for a page or says nothing, and is alone with the server.
#[test]
fn lone_callers_do_not_end_the_wait() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let local = listener.local();
    let client = thread::spawn(move || {
        for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"beef:"] {
            drop(TcpStream::connect(local).unwrap());
            let mut other = TcpStream::connect(local).unwrap();
            other.write_all(said).unwrap();
            // The server has had enough of it.
            until_closed(other);
        }
        let mut s = TcpStream::connect(local).unwrap();
        s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
        read_once(&mut s, Record::Plain.bytes());
        s.write_all(DONE).unwrap();
    });
    let stop = Stop::never().unwrap();
    let limits = Limits { connect: Duration::from_secs(60), silence: Duration::from_secs(1) };
    let (conversation, remote) = listener.client((1, Record::Plain), limits, &stop, None).unwrap();
    conversation.server_answer(Record::Plain, &[address(9)]).unwrap();
    client.join().unwrap();
    assert_eq!(one(remote), address(7));
}

#[test]
fn who_called_last_is_told_when_nobody_came() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let mut other = TcpStream::connect(listener.local()).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = listener.client((1, Record::Plain), limits(50), &Stop::never().unwrap(), None).err().unwrap();
    let failure = crate::failure::Failure::from(error);
    assert_eq!(failure.kind, crate::failure::Kind::Peer);
    let text = failure.to_string();
    for word in ["no client connected", "within 50ms", "speaks another protocol", "GET / HTTP", "C pingpongs"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

/// Something beside the port that cannot be done now, though its descriptor is ready all the time.
struct Unable {
    ready: TcpStream,
    asked: u32,
}

impl Aside for Unable {
    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn attend(&mut self) -> bool {
        self.asked += 1;
        false
    }

    fn make_room(&mut self) -> bool {
        false
    }
}

#[test]
fn what_cannot_be_done_now_is_not_tried_without_a_pause() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let peer = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let ready = TcpStream::connect(peer.local_addr().unwrap()).unwrap();
    // At its end, that is.
    drop(peer.accept().unwrap());
    let mut unable = Unable { ready, asked: 0 };
    let error = listener.client((1, Record::Plain), limits(300), &Stop::never().unwrap(), Some(&mut unable)).err();
    assert!(matches!(error, Some(ExchangeError::NobodyCame { last: None, .. })), "{error:?}");
    assert!((2..=20).contains(&unable.asked), "{}", unable.asked);
}

/// Lets a client speak between two looks at the callers, and another one call before it is heard.
struct Between {
    client: TcpStream,
    others: Vec<TcpStream>,
    looks: u32,
}

impl Aside for Between {
    fn fd(&self) -> BorrowedFd<'_> {
        // It can be written to, but there is nothing to be read until the client is answered.
        self.client.as_fd()
    }

    fn attend(&mut self) -> bool {
        self.looks += 1;
        if self.looks == 2 {
            self.client.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
            self.others.push(TcpStream::connect(self.client.peer_addr().unwrap()).unwrap());
        }
        // It is asked again in a moment.
        false
    }

    fn make_room(&mut self) -> bool {
        false
    }
}

#[test]
fn who_is_parted_with_is_heard_before() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let call = || TcpStream::connect(listener.local()).unwrap();
    let client = call();
    let others = (1..callers::MOST_CALLERS).map(|_| call()).collect();
    let mut between = Between { client, others, looks: 0 };
    let (_, remote) =
        listener.client((1, Record::Plain), limits(10_000), &Stop::never().unwrap(), Some(&mut between)).unwrap();
    assert_eq!(one(remote), address(7));
    assert_eq!(between.looks, 2);
}

fn xrc_address(n: u32) -> Address {
    let xrc = XrcNumbers { send_qpn: Qpn::new(n + 1).unwrap(), srqn: Srqn::new(n + 2).unwrap() };
    Address { xrc: Some(xrc), ..address(n) }
}

/// Our client's whole part against a server made of `serve`; it has received and sent all at once.
fn xrc_client_against(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0));
    let stop = Stop::never().unwrap();
    let conversation = Conversation::connect("127.0.0.1", port, ample(), &stop)?;
    let answer = conversation.client(Record::Xrc, &[xrc_address(7)]);
    let parted = answer.and_then(|(remote, farewell)| farewell.unwrap().exchange(Role::Client).map(|()| one(remote)));
    server.join().unwrap();
    parted
}

/// Our server's whole part, as [`xrc_client_against`] does the client's.
fn xrc_server_within(limits: Limits, talk: impl FnOnce(TcpStream) + Send + 'static) -> Result<Address> {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let stream = TcpStream::connect(listener.local()).unwrap();
    let client = thread::spawn(move || talk(stream));
    let stop = Stop::never().unwrap();
    let (conversation, remote) = listener.client((1, Record::Xrc), limits, &stop, None).map_err(trouble)?;
    let farewell = conversation.server_answer(Record::Xrc, &[xrc_address(9)]);
    let parted = farewell.and_then(|farewell| farewell.unwrap().exchange(Role::Server));
    client.join().unwrap();
    parted.map(|()| one(remote))
}

#[test]
fn xrc_client_follows_the_c_server() {
    let remote = xrc_client_against(|mut s| {
        assert_eq!(read_once(&mut s, 66), Record::Xrc.encode(&[xrc_address(7)]));
        s.write_all(&Record::Xrc.encode(&[xrc_address(9)])).unwrap();
        // Nothing comes in between, and the connection stays.
        assert_eq!(read_once(&mut s, 4), END);
        s.write_all(END).unwrap();
    });
    assert_eq!(remote.unwrap(), xrc_address(9));
}

#[test]
fn xrc_server_follows_the_c_client() {
    let remote = xrc_server_within(ample(), |mut s| {
        s.write_all(&Record::Xrc.encode(&[xrc_address(7)])).unwrap();
        assert_eq!(read_once(&mut s, 66), Record::Xrc.encode(&[xrc_address(9)]));
        s.write_all(END).unwrap();
        assert_eq!(read_once(&mut s, 4), END);
    });
    assert_eq!(remote.unwrap(), xrc_address(7));
}

#[test]
fn a_farewell_that_is_none_is_told() {
    let after_the_record = |limits, rest: fn(TcpStream)| {
        xrc_server_within(limits, move |mut s| {
            s.write_all(&Record::Xrc.encode(&[xrc_address(7)])).unwrap();
            read_once(&mut s, 66);
            rest(s);
        })
    };
    fn cause<T>(error: &Result<T>) -> &ExchangeError {
        match error {
            Err(ExchangeError::Farewell(cause)) => cause,
            _ => panic!("it failed before the end"),
        }
    }
    let error = after_the_record(limits(200), until_closed);
    assert!(matches!(cause(&error), ExchangeError::Silent { got: 0, need: 4, .. }), "{error:?}");
    let failure = crate::failure::Failure::from(error.unwrap_err());
    assert!(failure.to_string().contains("--iters"), "{failure}");
    let error = after_the_record(ample(), |mut s| s.write_all(b"EN").unwrap());
    assert!(matches!(cause(&error), ExchangeError::Closed { got: 2, need: 4, .. }), "{error:?}");
    let error = after_the_record(ample(), |mut s| {
        s.write_all(b"done").unwrap();
        until_closed(s);
    });
    assert!(matches!(cause(&error), ExchangeError::Unexpected { .. }), "{error:?}");
}

#[test]
fn the_peers_farewell_is_noticed_before_it_is_taken() {
    let listener = Listener::bind(Some(HERE), 0).unwrap();
    let mut s = TcpStream::connect(listener.local()).unwrap();
    s.write_all(&Record::Xrc.encode(&[xrc_address(7)])).unwrap();
    let stop = Stop::never().unwrap();
    let (conversation, _) = listener.client((1, Record::Xrc), limits(2000), &stop, None).unwrap();
    let farewell = conversation.server_answer(Record::Xrc, &[xrc_address(9)]).unwrap().unwrap();
    assert!(!farewell.has_begun());
    s.write_all(END).unwrap();
    let begin = Instant::now();
    while !farewell.has_begun() {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    farewell.exchange(Role::Server).unwrap();
    // So is an end without a word.
    let (ours, theirs) = (TcpListener::bind((LOCALHOST, 0)).unwrap(), limits(2000));
    let conversation = Conversation::connect("127.0.0.1", ours.local_addr().unwrap().port(), theirs, &stop).unwrap();
    let farewell = Farewell(conversation);
    drop(ours.accept().unwrap());
    while !farewell.has_begun() {
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}

/// Which of the two a peer speaks is told as soon as both differ.
#[test]
fn a_peer_with_the_other_record_is_told() {
    let error = xrc_server_within(limits(200), |mut s| {
        s.write_all(&Record::Plain.encode(&[address(7)])).unwrap();
        until_closed(s);
    });
    let failure = crate::failure::Failure::from(error.unwrap_err());
    assert!(failure.to_string().contains("not started with --transport xsrq"), "{failure}");
    let error = server_against(|mut s| {
        s.write_all(&Record::Xrc.encode(&[xrc_address(7)])).unwrap();
        until_closed(s);
    });
    let failure = crate::failure::Failure::from(error.unwrap_err());
    assert!(failure.to_string().contains("ibv_xsrq_pingpong"), "{failure}");
}
