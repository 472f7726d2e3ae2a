/*
 * Pagewire for C: a TCP/IP stack in your process that moves pages instead of copying bytes.
 *
 * Two ways to use it:
 *
 *   - An existing program, unchanged:    cc -include pagewire/posix.h prog.c -lpagewire
 *     and PAGEWIRE="tap=pw0,addr=10.77.0.2/24,host-addr=10.77.0.1/24" ./prog
 *   - A program that names its networks: pw_host_open, then pw_host_socket or pw_socket.
 *
 * Calls return what Linux's calls of the same name return, and leave errno. A call that fails also leaves a text,
 * pw_error. All functions may be called from any thread, none from a signal handler. C11 and C++17.
 *
 * Descriptors of the kernel and of Pagewire mix: a call on a descriptor of the kernel's is the kernel's call.
 */
#ifndef PAGEWIRE_H
#define PAGEWIRE_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mmsghdr;

/* ---- Errors ------------------------------------------------------------------------------------------------- */

/* The text for errno, after a call of this thread that failed, until its next call: what was wrong, in words. */
const char *pw_error(void);

/* The name of an error number, such as "EAGAIN"; "" for a number that no call of this library returns. */
const char *pw_errno_name(int error);

/* ---- Networks ------------------------------------------------------------------------------------------------ */

/*
 * Starts a network: a host on a link. Returns its handle, which is not negative; -1 and errno otherwise.
 *
 * `config` is a list of words, separated by commas. Exactly one names the link:
 *
 *   tap=NAME          a tap of the kernel's network, made if there is none (root, or CAP_NET_ADMIN)
 *   pair=NAME         a link to the other network of this process that names the same pair
 *   vhost-user=PATH   a virtual machine's port: a Unix socket that a front end connects to
 *   stream=PATH       a Unix socket for frames, as of QEMU's -netdev stream
 *   datagram=PATH     a Unix datagram socket for frames
 *   frames            the program moves the frames: pw_frames_send, pw_frames_receive
 *
 * The others are settings:
 *
 *   addr=ADDRESS/BITS       an address of the program; at least one, IPv4 or IPv6
 *   host-addr=ADDRESS/BITS  an address of the kernel's side of a tap
 *   gateway=ADDRESS         a default gateway, one for each IP version
 *   route=NETWORK@GATEWAY   a network behind another gateway
 *   queues=N                receive queues of a link that is no tap, for rings
 *   stats=PATH              a file that gets the report of all counts when the process exits
 *   mtu=BYTES  mac=AA:BB:CC:DD:EE:FF  spin=MICROSECONDS  memory=BYTES (65,536 or more)
 *
 * Errors: EINVAL (pw_error says which word), EPERM, EMFILE (255 networks), those of the link.
 */
int pw_host_open(const char *config);

/*
 * Ends a network: closes its descriptors, delivers what is queued within two seconds, and resets what is left.
 * Calls of other threads that wait on one of its sockets fail then. Chunks and memory that was sent stay valid; maps
 * (pw_mmap, pw_map) are gone, and must not be unmapped. Errors: EBADF.
 */
int pw_host_close(int host);

/*
 * Makes `host` the network of pw_socket and pw_pipe2; -1 makes it the kernel. Without this call it is the network of
 * the environment variable PAGEWIRE, which the first socket starts; without that, the kernel.
 */
int pw_host_use(int host);

/* The network of pw_socket; -1 and ENODEV if that is the kernel. */
int pw_host_used(void);

/* A socket of this network: pw_socket without a choice. A negative `host` here and below is pw_host_used(). */
int pw_host_socket(int host, int domain, int type, int protocol);

/* ---- Linux's calls ------------------------------------------------------------------------------------------- */

/*
 * Each is the call of its name without `pw_`, with Linux's constants, structures, results and errno. Differences:
 *
 *   - pw_socket gives a socket of the network in use for AF_INET and AF_INET6, and the kernel's for other families.
 *   - A call that blocks on one socket (pw_recv, pw_accept, ...) is not ended by a signal: there is no EINTR. Waits
 *     (pw_poll, pw_select, pw_epoll_wait and their relatives) are.
 *   - pw_epoll_create1 makes an instance of the kernel's. Its number is readable for poll, and for any event loop that
 *     watches levels (not EPOLLET), when pw_epoll_wait would report something, and perhaps once more. Wait for its
 *     members by pw_epoll_wait only.
 *   - pw_mmap of a stream reserves addresses for TCP_ZEROCOPY_RECEIVE.
 *   - pw_splice works between pipes of pw_pipe2 and sockets; a pipe of the kernel's and a socket: EINVAL.
 *   - Streams of stdio: pw_fdopen's, and stdin, stdout and stderr once a network's descriptor has number 0, 1 or 2.
 *   - After fork, calls on a network's descriptors fail with ENETDOWN in the child, pw_close excepted.
 */
int pw_socket(int domain, int type, int protocol);
int pw_bind(int fd, const struct sockaddr *addr, socklen_t len);
int pw_listen(int fd, int backlog);
int pw_accept(int fd, struct sockaddr *addr, socklen_t *len);
int pw_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int pw_connect(int fd, const struct sockaddr *addr, socklen_t len);
int pw_shutdown(int fd, int how);
int pw_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int pw_getpeername(int fd, struct sockaddr *addr, socklen_t *len);
int pw_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int pw_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

ssize_t pw_read(int fd, void *buf, size_t len);
ssize_t pw_readv(int fd, const struct iovec *iov, int count);
ssize_t pw_recv(int fd, void *buf, size_t len, int flags);
ssize_t pw_recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addr_len);
ssize_t pw_recvmsg(int fd, struct msghdr *message, int flags);
int pw_recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout);
ssize_t pw_write(int fd, const void *buf, size_t len);
ssize_t pw_writev(int fd, const struct iovec *iov, int count);
ssize_t pw_send(int fd, const void *buf, size_t len, int flags);
ssize_t pw_sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addr_len);
ssize_t pw_sendmsg(int fd, const struct msghdr *message, int flags);
int pw_sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags);
ssize_t pw_sendfile(int to, int from, off_t *offset, size_t len);
ssize_t pw_splice(int from, off_t *from_offset, int to, off_t *to_offset, size_t len, unsigned int flags);
int pw_pipe2(int fds[2], int flags);

int pw_close(int fd);
int pw_dup(int fd);
int pw_dup2(int fd, int to);
int pw_dup3(int fd, int to, int flags);
int pw_fcntl(int fd, int command, ...);
int pw_ioctl(int fd, unsigned long request, ...);
int pw_fstat(int fd, struct stat *status);
FILE *pw_fdopen(int fd, const char *mode);
int pw_fileno(FILE *stream);

int pw_poll(struct pollfd *fds, nfds_t count, int timeout);
int pw_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
int pw_select(int count, fd_set *read, fd_set *write, fd_set *except, struct timeval *timeout);
int pw_pselect(int count, fd_set *read, fd_set *write, fd_set *except, const struct timespec *timeout,
               const sigset_t *mask);
int pw_epoll_create(int size);
int pw_epoll_create1(int flags);
int pw_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int pw_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout);
int pw_epoll_pwait(int epoll, struct epoll_event *events, int max, int timeout, const sigset_t *mask);
int pw_epoll_pwait2(int epoll, struct epoll_event *events, int max, const struct timespec *timeout,
                    const sigset_t *mask);

void *pw_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
int pw_munmap(void *addr, size_t len);
int pw_madvise(void *addr, size_t len, int advice);

/* ---- Payload by reference ------------------------------------------------------------------------------------ */

/*
 * Called once when the library no longer reads data[0..len], on any thread: it must not wait. It may call this
 * library.
 */
typedef void (*pw_release)(void *context, const void *data, size_t len);

/*
 * Sends memory of the program's on a stream without a copy. Returns the number of bytes that are queued, which is
 * less than `len` only on a descriptor with O_NONBLOCK, with MSG_DONTWAIT, or with SO_SNDTIMEO. The memory stays as
 * it is until `release` was called with `context`, `data` and `len`; after an error it is not called, and the memory
 * is the program's. `release` may be null: memory that is never given back. Flags: MSG_DONTWAIT, MSG_MORE,
 * MSG_NOSIGNAL. Errors: those of send; EINVAL for no bytes; ENOTSOCK for a descriptor of the kernel's.
 */
ssize_t pw_send_owned(int fd, const void *data, size_t len, int flags, pw_release release, void *context);

/* Received bytes, in the page that they came in. `handle` is the library's. */
struct pw_chunk {
    const void *data;
    size_t len;
    unsigned int flags;
    void *handle;
};

/* A flag of a chunk: the sender may change the bytes while the program reads them. */
#define PW_CHUNK_SHARED 1u

/*
 * Takes up to `most` received bytes of a stream without a copy, as up to `count` chunks. Returns the number of chunks;
 * 0 is the end of the stream. Each chunk is to be given back, by pw_chunk_release or pw_send_chunk: until then its
 * pages, and the window that the peer gets, are less. Flags: MSG_DONTWAIT.
 */
ssize_t pw_recv_chunks(int fd, struct pw_chunk *chunks, size_t count, size_t most, int flags);

/* Gives a chunk back. A chunk that is null, or was given back, is ignored. */
void pw_chunk_release(struct pw_chunk *chunk);

/*
 * Sends a chunk on another connection of any network of this process, or on its own, without a copy. Returns the
 * number of bytes that are queued; the chunk then is the rest, or given back if there is none.
 */
ssize_t pw_send_chunk(int fd, struct pw_chunk *chunk, int flags);

/*
 * Maps the next `len` received bytes of a stream, whole pages that were received as such, and takes them; MAP_FAILED
 * and errno otherwise (EAGAIN: not yet; EINVAL: not whole pages, or memory that its sender can still change: use
 * recv). pw_munmap gives the pages back.
 */
void *pw_map(int fd, size_t len);

/* ---- Rings: receive into registered memory -------------------------------------------------------------------- */

/*
 * Rings of a network, as of io_uring's zero-copy receive: the device writes payload into memory that was registered
 * for its queue, and the program reads the payload there. `copy_bytes` of further memory get payload that no queue
 * could write there. Sizes are multiples of 256 KiB. Null and errno after an error; pw_error says more.
 *
 * A tap that the library made has queues 0 to 15; a tap that existed has queue 0. Other links have those of the word
 * queues=N, whose bytes are copied once, by the device.
 */
typedef struct pw_rings pw_rings;
typedef struct pw_rings_listener pw_rings_listener;
typedef struct pw_rings_stream pw_rings_stream;

pw_rings *pw_rings_open(int host, size_t copy_bytes);

/* Ends rings. Listeners, streams and buffers of the rings may be closed before or later. */
void pw_rings_close(pw_rings *rings);

/*
 * Registers `bytes` of memory for a queue, and steers TCP to `port` there (0: what comes there already). Returns the
 * group, for pw_rings_receive.
 */
int pw_rings_register(pw_rings *rings, unsigned int queue, size_t bytes, uint16_t port);

/* Listens for connections to an IPv4 or IPv6 address. */
pw_rings_listener *pw_rings_listen(pw_rings *rings, const struct sockaddr *addr, socklen_t len);
void pw_rings_listener_close(pw_rings_listener *listener);

/* Accepts a connection. A negative time is for ever; null and EAGAIN when the time is over. */
pw_rings_stream *pw_rings_accept(pw_rings_listener *listener, int timeout_ms);
void pw_rings_stream_close(pw_rings_stream *stream);

/* Received bytes in registered memory. `handle` is the library's. */
struct pw_ring_buffer {
    const void *data;
    size_t len;
    unsigned int flags;
    void *handle;
};

/* A flag of a buffer: the bytes were copied, and lie in the memory for copies. */
#define PW_RING_COPIED 1u

/*
 * Receives up to `most` bytes as up to `count` buffers; further buffers come with the next call. Returns the number of
 * buffers; 0 is the end of the stream. Each buffer is to be given back: until then the device cannot write there.
 */
ssize_t pw_rings_receive(pw_rings_stream *stream, int group, struct pw_ring_buffer *buffers, size_t count,
                         size_t most, int timeout_ms);

/* Gives a buffer back. A buffer that is null, or was given back, is ignored. */
void pw_rings_release(struct pw_ring_buffer *buffer);

/* ---- Frames -------------------------------------------------------------------------------------------------- */

/* Gives the network of a link `frames` an Ethernet frame. Errors: EAGAIN (full), EINVAL (length), ENETDOWN. */
ssize_t pw_frames_send(int host, const void *frame, size_t len);

/* Takes a frame of the network's; a longer one is cut. Errors: EAGAIN (none yet), ENETDOWN. */
ssize_t pw_frames_receive(int host, void *into, size_t len);

/* A descriptor of the kernel's that is readable after pw_frames_receive said EAGAIN, once there is a frame. */
int pw_frames_fd(int host);

/* ---- The ledger, and counts ---------------------------------------------------------------------------------- */

/* Counts of a network since its start. Set `size` to sizeof(struct pw_ledger) first: later versions have more. */
struct pw_ledger {
    size_t size;
    /* Payload bytes that the stack copied: 0 where all payload went by reference. */
    uint64_t copied;
    /* Payload bytes that the device or the kernel copied at the link. */
    uint64_t by_device;
    /* Frames sent and received. */
    uint64_t sent_frames;
    uint64_t received_frames;
};

/* Fills in the ledger. Errors: EINVAL (size), EBADF, ENODEV. */
int pw_ledger_get(int host, struct pw_ledger *into);

/* Calls `each` with the name and the value of every count, and with the copied bytes by reason. */
int pw_counts_each(int host, void (*each)(void *context, const char *name, uint64_t value), void *context);

/* Writes the report of all counts that are not 0, cut to `len` bytes with its final 0; returns its whole length. */
ssize_t pw_stats_text(int host, char *into, size_t len);

#ifdef __cplusplus
}
#endif

#endif /* PAGEWIRE_H */
