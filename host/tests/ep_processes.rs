//! Groups whose ranks are processes: tokens through shared memory, and what becomes of those who stay when one dies.
//!
//! Each rank is this program again, with the ignored test `process` as its body.

mod ep_support;
mod process_support;

use ep_support::{DeviceInput, Input, PATTERN, check_idle, check_received, random_input};
use fastrand::Rng;
use process_support::{Cast, Orders, Peer};
use std::thread;
use std::time::{Duration, Instant};
use tokenyard::ep::{EpConfig, EpConfigBuilder, EpError, EpGroup, TokenFormat};
use tokenyard::peer::{PeerError, Rendezvous};
use tokenyard::{Device, Stream};

/// How long kernels wait for another process that will not come.
const DEADLINE: Duration = Duration::from_millis(400);

fn small(format: TokenFormat, ranks: usize) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(256)
        .top_k(3)
        .experts(12)
        .ranks(ranks)
        .max_tokens_per_rank(7)
}

/// What all ranks dispatch in a round. Every process knows it, to check what it gets.
fn inputs(config: &EpConfig, round: u64) -> Vec<Input> {
    let mut rng = Rng::with_seed(round);
    (0..config.ranks())
        .map(|_| {
            let tokens = rng.usize(0..=config.max_tokens_per_rank());
            random_input(&mut rng, config, tokens, 0.1)
        })
        .collect()
}

/// One rank, as a process has it.
struct Process {
    group: EpGroup,
    stream: Stream,
}

impl Process {
    fn join(orders: &Orders, config: EpConfig) -> Result<Self, EpError> {
        let device = Device::emulator(orders.rank as u64);
        let meeting = Rendezvous::new(&orders.path, orders.rank, orders.ranks)?;
        let meeting = meeting.deadline(orders.patience);
        Ok(Self {
            stream: device.create_stream()?,
            group: EpGroup::join(&device, config, &meeting)?,
        })
    }

    /// One round, checked against the reference.
    fn round(&mut self, round: u64, fused: bool) -> Result<(), EpError> {
        let config = self.group.config().clone();
        let inputs = inputs(&config, round);
        let rank = self.group.ranks()[0].number();
        let input = DeviceInput::upload(self.group.device(), &inputs[rank]);
        let batch = input.batch(&config);
        let mut received = [self.group.allocate_received()?];
        received[0].fill(PATTERN)?;
        if fused {
            let _ = self.group.dispatch(&self.stream, &[batch], &mut received)?;
        } else {
            let own = &mut self.group.ranks_mut()[0];
            let pending = own.dispatch_async(&self.stream, &batch)?;
            let _ = own.dispatch_wait(&self.stream, pending, &mut received[0])?;
        }
        self.group.check()?;
        check_received(&config, &inputs, rank, &received[0]);
        Ok(())
    }
}

/// What a process does, by the name of the case.
#[test]
#[ignore = "the other tests run it, as other processes"]
fn process() {
    let orders = Orders::from_environment();
    match orders.case.as_str() {
        "rounds" => rounds(&orders),
        "disagree" => disagree(&orders),
        "wait to be killed" => wait_to_be_killed(&orders),
        "outlive" => outlive(&orders),
        other => panic!("there is no case {other}"),
    }
}

fn rounds(orders: &Orders) {
    for (format, nodes) in [
        (TokenFormat::Mxfp4, 1),
        (TokenFormat::Nvfp4, 1),
        (TokenFormat::Fp8Block128, orders.ranks),
    ] {
        let config = small(format, orders.ranks).ranks_per_node(orders.ranks / nodes);
        let mut process = Process::join(orders, config.build().unwrap()).unwrap();
        for round in 0..6 {
            process.round(round, round % 3 == 2).unwrap();
        }
        // Others may have begun no round that this one has not: all is as before the first.
        check_idle(&process.group);
    }
}

#[test]
fn processes_exchange_tokens_round_after_round() {
    for ranks in [2, 3, 4] {
        let cast = Cast::new("rounds", ranks);
        let peers: Vec<_> = (0..ranks).map(|rank| cast.spawn(rank)).collect();
        for peer in peers {
            peer.finish();
        }
        cast.assert_nothing_left();
    }
}

fn disagree(orders: &Orders) {
    let hidden = if orders.rank == 1 { 512 } else { 256 };
    let config = small(TokenFormat::Mxfp8, orders.ranks).hidden_size(hidden);
    let error = Process::join(orders, config.build().unwrap())
        .err()
        .unwrap();
    let (item, rank, value, other, other_value) = match error {
        EpError::Peer(PeerError::Disagreement {
            item,
            rank,
            value,
            other,
            other_value,
        }) => (item, rank, value, other, other_value),
        // Started last by the system, it came when the others had parted already, or while they did.
        EpError::Peer(PeerError::Missing { missing, .. }) if orders.rank == 2 => {
            assert_eq!(missing, [0]);
            return;
        }
        EpError::Peer(PeerError::Gone { rank: 0 }) if orders.rank == 2 => return,
        error => panic!("{error}"),
    };
    assert_eq!(
        (item.as_str(), rank, value.as_str()),
        ("hidden_size", 1, "512")
    );
    assert_eq!((other, other_value.as_str()), (0, "256"));
}

#[test]
fn a_rank_that_disagrees_is_named_to_all() {
    let cast = Cast::new("disagree", 3).patience(Duration::from_secs(20));
    // In order, so that the one that disagrees is most likely the last to come.
    let mut peers = vec![cast.spawn(0), cast.spawn(2)];
    peers.push(cast.spawn(1));
    for peer in peers {
        peer.finish();
    }
    cast.assert_nothing_left();
}

/// A process that meets the others, and stays.
fn wait_to_be_killed(orders: &Orders) {
    let config = small(TokenFormat::Bf16, orders.ranks).build().unwrap();
    let mut process = Process::join(orders, config).unwrap();
    process.round(0, false).unwrap();
    orders.say("met");
    orders.hear();
    panic!("it was not killed");
}

fn outlive(orders: &Orders) {
    let config = small(TokenFormat::Bf16, orders.ranks).deadline(Some(DEADLINE));
    let mut process = match Process::join(orders, config.build().unwrap()) {
        Ok(process) => process,
        Err(error) => {
            orders.say(&format!("{error:?}"));
            return;
        }
    };
    process.round(0, false).unwrap();
    let device = process.group.device().clone();
    let config = process.group.config().clone();
    let input = DeviceInput::upload(&device, &inputs(&config, 1)[orders.rank]);
    let mut received = process.group.allocate_received().unwrap();
    let own = &mut process.group.ranks_mut()[0];
    let pending = own
        .dispatch_async(&process.stream, &input.batch(&config))
        .unwrap();
    let _ = own
        .dispatch_wait(&process.stream, pending, &mut received)
        .unwrap();
    orders.say("queued");
    orders.hear();
    let start = Instant::now();
    let error = process.group.check().unwrap_err();
    assert!(start.elapsed() < 20 * DEADLINE, "{:?}", start.elapsed());
    let EpError::PeerGone { awaited, rank, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((rank, awaited.rank()), (1, Some(1)));
    let error = process.round(2, false).unwrap_err();
    assert!(matches!(error, EpError::Unusable { .. }), "{error}");
}

#[test]
fn the_death_of_a_rank_between_rounds_is_an_error_of_the_others() {
    let cast = Cast::new("outlive", 3);
    let mut victim = cast.spawn_as("wait to be killed", 1);
    let mut others: Vec<Peer> = [0, 2].map(|rank| cast.spawn(rank)).into();
    victim.expect("met");
    for other in &mut others {
        other.expect("queued");
    }
    victim.kill();
    for other in &mut others {
        other.tell("go on");
    }
    for other in others {
        other.finish();
    }
    cast.assert_nothing_left();
}

#[test]
fn the_death_of_a_rank_that_has_introduced_itself_is_an_error_of_the_others() {
    let cast = Cast::new("outlive", 4).patience(Duration::from_secs(20));
    let mut first = cast.spawn(0);
    cast.wait_for_path();
    let victim = cast.spawn_as("wait to be killed", 1);
    let mut third = cast.spawn(2);
    // Rank 3 never comes, so that the others wait. That rank 1 has introduced itself cannot be seen from here; if it
    // has not, it is missing.
    std::thread::sleep(Duration::from_millis(500));
    victim.kill();
    let start = Instant::now();
    let said = first.hear();
    assert!(said.contains("Gone { rank: 1 }"), "{said}");
    let said = third.hear();
    assert!(
        said.contains("rank: 0") && said.contains("rank 1 is gone"),
        "{said}"
    );
    assert!(start.elapsed() < Duration::from_secs(10));
    first.finish();
    third.finish();
    cast.assert_nothing_left();
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let cast = Cast::new("outlive", 4).patience(Duration::from_secs(3));
    let first = cast.spawn(0);
    // More patient than rank 0, which would otherwise find it gone.
    let cast = cast.patience(Duration::from_secs(30));
    let mut peers = [first, cast.spawn(2)];
    let said = peers[0].hear();
    assert!(
        said.contains("Missing") && said.contains("missing: [1, 3]"),
        "{said}"
    );
    let said = peers[1].hear();
    assert!(
        said.contains("GaveUp { rank: 0") && said.contains("ranks [1, 3]"),
        "{said}"
    );
    for peer in peers {
        peer.finish();
    }
    cast.assert_nothing_left();
}

#[test]
fn what_a_killed_rank_left_is_replaced() {
    let cast = Cast::new("rounds", 2);
    let first = cast.spawn(0);
    cast.wait_for_path();
    first.kill();
    assert!(cast.path().exists());
    for peer in [cast.spawn(0), cast.spawn(1)] {
        peer.finish();
    }
    cast.assert_nothing_left();
}

#[test]
fn strangers_at_the_meeting_point_are_ignored() {
    use rustix::io::Errno;
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send,
        socket_with,
    };
    let cast = Cast::new("rounds", 2);
    let first = cast.spawn(0);
    cast.wait_for_path();
    let stranger = |message: &[u8]| {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(cast.path()).unwrap();
        // The path is there a moment before rank 0 listens.
        let end = Instant::now() + Duration::from_secs(10);
        while let Err(error) = connect(&socket, &address) {
            assert_eq!(error, Errno::CONNREFUSED);
            assert!(Instant::now() < end, "rank 0 does not listen");
            thread::sleep(Duration::from_millis(1));
        }
        send(&socket, message, SendFlags::NOSIGNAL).unwrap();
        socket
    };
    let messages: [&[u8]; 5] = [
        b"GET / HTTP/1.0",
        b"rank one\n",
        b"rank 1\nmemory descriptor 4096\n",
        b"rank 1\nnonsense",
        &[0xFF; 3000],
    ];
    let strangers = messages.map(stranger);
    let second = cast.spawn(1);
    // Those who say nothing, and stay, do not matter either; those who leave do not.
    drop(strangers);
    first.finish();
    second.finish();
    cast.assert_nothing_left();
}
