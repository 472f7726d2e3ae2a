/*
 * zerocopy_send ADDR PORT BYTES
 *
 * The program connects to ADDR PORT by TCP and sends BYTES of a pattern with MSG_ZEROCOPY.
 * It reads the notifications from the socket's error queue.
 * Every send must be notified exactly once.
 *
 * stdout: sent BYTES
 *         all sends were notified
 * stderr: the sends that the stack reports as copied (this varies).
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -o zerocopy_send zerocopy_send.c
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>
#include <linux/errqueue.h>

#include "common.h"

#define PIECE (256 * 1024)

static uint32_t sends;      /* the next send's number */
static uint32_t notified;   /* sends that a notification has covered */
static uint32_t copied;     /* sends that a notification calls copied */
static unsigned char *seen; /* one byte a send: 1 once it is notified */

/* A notification covers the sends ee_info..ee_data, both included. */
static void take_notification(const struct sock_extended_err *ee)
{
    if (ee->ee_errno != 0 || ee->ee_origin != SO_EE_ORIGIN_ZEROCOPY)
        wrong("recvmsg: the error queue holds something else than a notification");
    if (ee->ee_info > ee->ee_data || ee->ee_data >= sends)
        wrong("recvmsg: a notification's range names a send that was not made");
    for (uint32_t id = ee->ee_info; id <= ee->ee_data; id++) {
        if (seen[id])
            wrong("recvmsg: a send was notified twice");
        seen[id] = 1;
        notified++;
        if (ee->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
            copied++;
    }
}

/* A read of the error queue never blocks.  The result is the number of messages read. */
static int read_notifications(int fd)
{
    for (int count = 0;; count++) {
        union {
            char bytes[256];
            struct cmsghdr align;
        } control;
        struct msghdr msg = {.msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        if (recvmsg(fd, &msg, MSG_ERRQUEUE) == -1) {
            if (errno == EAGAIN)
                return count;
            die("recvmsg");
        }
        struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);
        if (cm == NULL || (msg.msg_flags & MSG_CTRUNC) != 0)
            wrong("recvmsg: a notification lacks its control message");
        if (!(cm->cmsg_level == SOL_IP && cm->cmsg_type == IP_RECVERR) &&
            !(cm->cmsg_level == SOL_IPV6 && cm->cmsg_type == IPV6_RECVERR))
            wrong("recvmsg: a control message has an unknown type");
        struct sock_extended_err ee;
        memcpy(&ee, CMSG_DATA(cm), sizeof ee);
        take_notification(&ee);
    }
}

/* poll() reports POLLERR for a filled error queue, whatever events it is asked for. */
static void wait_for_notification(int fd)
{
    struct pollfd p = {.fd = fd, .events = 0};
    if (poll(&p, 1, -1) == -1)
        die("poll");
    if ((p.revents & POLLERR) == 0)
        wrong("poll: the socket hung up before every send was notified");
    if (read_notifications(fd) == 0) {
        int error;
        socklen_t len = sizeof error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == -1)
            die("getsockopt SO_ERROR");
        if ((errno = error) != 0)
            die("poll");
    }
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (bytes == 0)
        wrong("usage: zerocopy_send ADDR PORT BYTES");
    alarm(60);

    unsigned char *data =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        die("mmap");
    for (size_t i = 0; i < bytes; i++)
        data[i] = pattern(i);

    int fd = connect_to(argv[1], argv[2], SOCK_STREAM);
    int one = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == -1)
        die("setsockopt SO_ZEROCOPY");

    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        ssize_t n = send(fd, data + done, piece, MSG_ZEROCOPY | MSG_NOSIGNAL);
        if (n == -1 && errno == ENOBUFS && notified < sends) {
            wait_for_notification(fd); /* Notified sends make room for the next. */
            continue;
        }
        if (n == -1)
            die("send");
        done += n;
        sends++;
        seen = realloc(seen, sends);
        if (seen == NULL)
            die("realloc");
        seen[sends - 1] = 0;
        read_notifications(fd);
    }
    while (notified < sends)
        wait_for_notification(fd);

    if (shutdown(fd, SHUT_WR) == -1)
        die("shutdown");
    char byte;
    ssize_t n = recv(fd, &byte, 1, 0);
    if (n == -1)
        die("recv");
    if (n != 0)
        wrong("recv: the peer sent data");
    if (read_notifications(fd) != 0)
        wrong("recvmsg: a notification came after the last");
    if (close(fd) == -1)
        die("close");
    free(seen);
    fprintf(stderr, "zerocopy_send: %u of %u sends were copied\n", copied, sends);
    printf("sent %zu\nall sends were notified\n", bytes);
    return 0;
}
