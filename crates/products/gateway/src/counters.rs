//! Counters of a guest's relay.

pagewire::parts::counters! {
    /// Counts of one guest, since it was added.
    #[derive(Copy)]
    pub struct Counters {
        /// Connections that the guest asked for.
        asked,
        /// Dials begun.
        dialled,
        /// Connections of the guest that the far side accepted.
        opened,
        /// Connections that both sides have ended.
        finished,
        /// Connections that one side broke, and the other was reset.
        broken,
        /// Connections that were reset because nobody sent anything for too long.
        idle,
        /// Asks that rules refused, prohibited or left without an answer.
        denied,
        /// The part of `denied` that was permitted, and then showed no name that permits it.
        mismatched,
        /// Flows that rules would have refused, and that went on for an audit.
        audited,
        /// The part of `denied` that was permitted and has no way: datagrams and echo requests for which there is a
        /// proxy, and addresses that stand for no name.
        no_way,
        /// Connections that a proxy opened.
        proxied,
        /// Dials that failed at a proxy: it did not answer, or refused the credentials.
        proxies_failed,
        /// Asks that were dropped because the kernel did not say whether the destination is this machine.
        undecided,
        /// Questions to a policy.
        questions,
        /// The part of `questions` that had no answer in time.
        questions_unanswered,
        /// Asks that were no question, because there were too many.
        questions_refused,
        /// Names that the resolver refused, because of a rule or for want of a resolver.
        names_denied,
        /// The part of `names_denied` that a denial has for some ports, whose addresses found no room.
        denials_full,
        /// Datagrams and echo requests to new destinations, beyond the rate of these.
        destinations_refused,
        /// Messages with datagrams that were dropped because their rule's rate was used up.
        datagrams_over_rate,
        /// Clients of published UDP ports that made room for others before the guest answered.
        clients_forgotten,
        /// Dials that the far side refused.
        refused,
        /// Dials that no route led to, or whose host did not answer for the network.
        unreachable,
        /// Dials without an answer.
        silent,
        /// Asks that the guest gave up, or reset, before there was an answer.
        given_up,
        /// Asks that waited for a dial slot, or because of the rate.
        waited,
        /// Dials that were given up for others that waited.
        yielded,
        /// Dials that failed for want of descriptors, ports or memory of this process; they are repeated.
        exhausted,
        /// Connections of clients to published ports.
        clients,
        /// Connections between loopback interfaces, of a namespace and of this machine, which the kernel's sockets
        /// were joined for; the part of `opened` without the stack.
        spliced,
        /// Payload bytes from the guest to the network.
        bytes_out,
        /// Payload bytes from the network to the guest.
        bytes_in,
        /// Writes to the kernel's sockets.
        writes,
        /// Reads from the kernel's sockets.
        reads,
        /// The most connections at once.
        most_at_once,
        /// Datagrams from the guest to the network.
        datagrams_out,
        /// Datagrams from the network to the guest.
        datagrams_in,
        /// Datagrams that a socket of the kernel, or the guest's stack, had no room for.
        datagrams_lost,
        /// Datagrams from addresses that their receiver has sent nothing to.
        datagrams_filtered,
        /// Datagrams and echo requests beyond the limit on endpoints.
        endpoints_refused,
        /// Endpoints opened.
        endpoints_opened,
        /// Errors of the network about the guest's datagrams, which were passed on.
        errors_in,
        /// Echo requests sent.
        echoes_out,
        /// Echo requests for which this process has no socket: its group is not in the kernel's
        /// `net.ipv4.ping_group_range`.
        echoes_refused,
        /// Echo replies passed on.
        echoes_in,
    }
}
