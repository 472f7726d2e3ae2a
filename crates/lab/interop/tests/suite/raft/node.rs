//! A node of the cluster, and a client that writes and reads.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::{Config, EmptyNode, ServerState, SnapshotPolicy};
use pagewire_simulation::Result;
use pagewire_simulation::net::{TcpListener, TcpStream};
use serde::{Deserialize, Serialize};

use crate::raft::network::{Network, read_frame, serve, write_frame};
use crate::raft::oracle::{Call, Oracle, What};
use crate::raft::store::{Registers, Store};
use crate::raft::types::{NodeId, Raft, Write};
use crate::raft::{CALM, END, NODES};

/// Where nodes speak with clients.
const PORT: u16 = 8000;
/// Registers.
const KEYS: u64 = 2;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(800);

/// Bugs that are planted in the nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bugs {
    pub(crate) forgets_votes: bool,
    pub(crate) serves_stale_reads: bool,
}

#[derive(Serialize, Deserialize)]
enum Request {
    Write(Write),
    Read(u8),
}

/// `Err`: this node cannot say, another may lead.
type Answer = std::result::Result<Option<u64>, ()>;

/// Each node has a range of election timeouts of its own. openraft 0.9 draws a timeout once, when a
/// node starts, and checks it every 100 ms: from one range, three nodes may draw timeouts that end
/// at the same check, and then stand for election at the same time for ever.
fn config(id: NodeId) -> Result<Arc<Config>> {
    let shortest = 200 + 200 * id;
    let config = Config {
        heartbeat_interval: 100,
        election_timeout_min: shortest,
        election_timeout_max: shortest + 200,
        snapshot_policy: SnapshotPolicy::Never,
        ..Config::default()
    };
    Ok(Arc::new(config.validate()?))
}

/// Runs a node until its power goes.
pub(crate) async fn node(id: NodeId, store: Store, oracle: Oracle, bugs: Bugs) -> Result {
    store.power_on();
    let registers = Registers::new(id, oracle.clone());
    let raft = Raft::new(id, config(id)?, Network, store.clone(), registers.clone()).await?;
    if id == 1 && !raft.is_initialized().await? {
        let members: BTreeMap<_, _> = (1..=NODES).map(|id| (id, EmptyNode {})).collect();
        raft.initialize(members).await?;
    }
    tokio::spawn(watch(raft.clone(), store, oracle));
    let peers = serve(raft.clone());
    let clients = answer(raft, registers, bugs);
    tokio::try_join!(peers, clients)?;
    Ok(())
}

/// Tells the oracle who leads.
async fn watch(raft: Raft, store: Store, oracle: Oracle) {
    let mut metrics = raft.metrics();
    loop {
        let (state, term, id) = {
            let metrics = metrics.borrow_and_update();
            (metrics.state, metrics.current_term, metrics.id)
        };
        if state == ServerState::Leader {
            oracle.leads(id, term, &store);
        }
        if metrics.changed().await.is_err() {
            break;
        }
    }
}

async fn answer(raft: Raft, registers: Registers, bugs: Bugs) -> Result {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let (raft, registers) = (raft.clone(), registers.clone());
        tokio::spawn(async move {
            while let Ok(request) = read_frame(&mut stream).await {
                let answer = serve_one(&raft, &registers, request, bugs).await;
                if write_frame(&mut stream, &answer).await.is_err() {
                    break;
                }
            }
        });
    }
}

async fn serve_one(raft: &Raft, registers: &Registers, request: Request, bugs: Bugs) -> Answer {
    match request {
        Request::Write(write) => match raft.client_write(write).await {
            Ok(_) => Ok(None),
            Err(_) => Err(()),
        },
        Request::Read(key) if bugs.serves_stale_reads => {
            let leads = raft.metrics().borrow().state == ServerState::Leader;
            if leads { Ok(registers.get(key)) } else { Err(()) }
        }
        Request::Read(key) => match raft.ensure_linearizable().await {
            Ok(_) => Ok(registers.get(key)),
            Err(_) => Err(()),
        },
    }
}

/// Writes and reads until the end; the last calls have to be answered.
pub(crate) async fn client(number: u64, oracle: Oracle) -> Result {
    let mut random = pagewire_simulation::rng::rng()?;
    let mut next = 1 + number;
    let mut node = 1 + number;
    let mut last_answer = Duration::ZERO;
    loop {
        let now = pagewire_simulation::time::elapsed()?;
        if now > CALM && last_answer > CALM {
            return Ok(());
        }
        if now > END {
            return Err(format!("no answer since {last_answer:?}").into());
        }
        let key = random.below(KEYS) as u8;
        let request = if random.chance(0.5) {
            let value = next;
            next += 2;
            Request::Write(Write { key, value })
        } else {
            Request::Read(key)
        };
        let start = now.as_nanos() as u64;
        let asked = tokio::time::timeout(PATIENCE, ask(node, &request)).await;
        let end = pagewire_simulation::time::elapsed()?;
        let answer = match asked {
            Ok(Ok(answer)) => answer,
            _ => Err(()),
        };
        if answer.is_ok() {
            last_answer = end;
        } else {
            node = 1 + random.below(NODES);
        }
        let end = answer.is_ok().then_some(end.as_nanos() as u64);
        let what = match request {
            Request::Write(write) => What::Write(write.value),
            Request::Read(_) => What::Read(answer.ok().flatten()),
        };
        oracle.called(key, Call { what, start, end });
        tokio::time::sleep(Duration::from_millis(20 + random.below(100))).await;
    }
}

async fn ask(node: NodeId, request: &Request) -> io::Result<Answer> {
    let mut stream = TcpStream::connect((format!("node{node}"), PORT)).await?;
    write_frame(&mut stream, request).await?;
    read_frame(&mut stream).await
}
