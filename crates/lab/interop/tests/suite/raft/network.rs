//! Messages between nodes: frames of JSON with their length in front, a connection a peer, made
//! again when it breaks.

use std::io;

use openraft::error::{InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use pagewire_simulation::net::{TcpListener, TcpStream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::raft::types::{NodeId, Raft, Types};

/// Where nodes speak with nodes.
const PORT: u16 = 7000;
/// Bytes of the longest frame.
const LONGEST: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<NodeId>),
}

pub(crate) async fn write_frame(stream: &mut TcpStream, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    stream.write_all(&frame).await
}

pub(crate) async fn read_frame<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let len = stream.read_u32().await? as usize;
    if len > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Answers the other nodes.
pub(crate) async fn serve(raft: Raft) -> pagewire_simulation::Result {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let raft = raft.clone();
        tokio::spawn(async move {
            while let Ok(request) = read_frame(&mut stream).await {
                let sent = match request {
                    Request::Append(rpc) => {
                        write_frame(&mut stream, &raft.append_entries(rpc).await).await
                    }
                    Request::Vote(rpc) => write_frame(&mut stream, &raft.vote(rpc).await).await,
                };
                if sent.is_err() {
                    break;
                }
            }
        });
    }
}

/// Makes connections to the other nodes.
pub(crate) struct Network;

/// The connection to one node, while there is one.
pub(crate) struct Peer {
    target: NodeId,
    stream: Option<TcpStream>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, _: &openraft::EmptyNode) -> Peer {
        Peer { target, stream: None }
    }
}

type Failed<E> = RPCError<NodeId, openraft::EmptyNode, E>;

impl Peer {
    /// Sends one request and waits for the answer. A call that is dropped or fails leaves no connection, so no
    /// answer is taken for that of another question.
    async fn call<T, E>(&mut self, request: Request) -> Result<T, Failed<E>>
    where
        T: DeserializeOwned,
        E: DeserializeOwned + std::error::Error,
    {
        match self.ask::<Result<T, E>>(&request).await {
            Ok(answer) => answer.map_err(|error| RemoteError::new(self.target, error).into()),
            Err(error) => Err(Unreachable::new(&error).into()),
        }
    }

    async fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> io::Result<T> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect((format!("node{}", self.target), PORT)).await?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        write_frame(&mut stream, request).await?;
        let answer = read_frame(&mut stream).await?;
        self.stream = Some(stream);
        Ok(answer)
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Failed<RaftError<NodeId>>> {
        self.call(Request::Append(rpc)).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Failed<RaftError<NodeId>>> {
        self.call(Request::Vote(rpc)).await
    }

    async fn install_snapshot(
        &mut self,
        _: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, Failed<RaftError<NodeId, InstallSnapshotError>>>
    {
        let error = io::Error::other("logs are whole here");
        Err(Unreachable::new(&error).into())
    }
}
