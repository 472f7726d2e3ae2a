/*
 * udp_server ADDR PORT DATAGRAMS
 *
 * The program answers DATAGRAMS UDP datagrams, each with its own payload.
 * It receives up to 32 at a time with recvmmsg() and answers them with sendmmsg().
 * The payload "segments N SIZE" asks for N datagrams of SIZE bytes instead.
 * One sendmsg() with UDP_SEGMENT makes them.  Every byte of the datagram K has the value K.
 *
 * stdout: listening
 *         served DATAGRAMS
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -o udp_server udp_server.c
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/udp.h>

#include "common.h"

#define BATCH 32
#define LARGEST 65507 /* the largest UDP payload over IPv4 */

static char payloads[BATCH][LARGEST + 1]; /* The last byte ends the text for sscanf(). */
static struct sockaddr_storage peers[BATCH];
static struct iovec parts[BATCH];
static struct mmsghdr messages[BATCH], answers[BATCH];

/* One sendmsg() makes all of the segments. */
static void send_segments(int fd, struct msghdr *to, unsigned count, unsigned size)
{
    static unsigned char data[LARGEST];
    for (unsigned i = 0; i < count * size; i++)
        data[i] = i / size;

    union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = data, .iov_len = count * size};
    struct msghdr msg = {.msg_name = to->msg_name, .msg_namelen = to->msg_namelen,
                         .msg_iov = &part, .msg_iovlen = 1,
                         .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);
    uint16_t segment = size;
    cm->cmsg_level = SOL_UDP;
    cm->cmsg_type = UDP_SEGMENT;
    cm->cmsg_len = CMSG_LEN(sizeof segment);
    memcpy(CMSG_DATA(cm), &segment, sizeof segment);
    ssize_t n = sendmsg(fd, &msg, 0);
    if (n == -1)
        die("sendmsg UDP_SEGMENT");
    if ((size_t)n != part.iov_len) {
        fprintf(stderr, "udp_server: sendmsg: sent %zd of %zu bytes\n", n, part.iov_len);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    unsigned long datagrams = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (datagrams == 0) {
        fprintf(stderr, "usage: udp_server ADDR PORT DATAGRAMS\n");
        return 1;
    }
    alarm(60);
    int fd = serve_on(argv[1], argv[2], SOCK_DGRAM);
    printf("listening\n");
    fflush(stdout);

    for (unsigned long served = 0; served < datagrams;) {
        unsigned room = datagrams - served < BATCH ? datagrams - served : BATCH;
        for (unsigned i = 0; i < room; i++) {
            parts[i] = (struct iovec){.iov_base = payloads[i], .iov_len = LARGEST};
            messages[i].msg_hdr = (struct msghdr){.msg_name = &peers[i],
                                                  .msg_namelen = sizeof peers[i],
                                                  .msg_iov = &parts[i], .msg_iovlen = 1};
        }
        /* MSG_WAITFORONE blocks for the first datagram only. */
        int got = recvmmsg(fd, messages, room, MSG_WAITFORONE, NULL);
        if (got == -1)
            die("recvmmsg");

        int plain = 0;
        for (int i = 0; i < got; i++) {
            unsigned count, size;
            payloads[i][messages[i].msg_len] = '\0';
            if (sscanf(payloads[i], "segments %u %u", &count, &size) == 2 && count >= 1 &&
                count <= 64 && size >= 1 && size <= LARGEST / count) {
                send_segments(fd, &messages[i].msg_hdr, count, size);
            } else {
                parts[i].iov_len = messages[i].msg_len;
                answers[plain++].msg_hdr = messages[i].msg_hdr;
            }
        }
        /* sendmmsg() may send fewer messages than it is given. */
        for (int sent = 0; sent < plain;) {
            int n = sendmmsg(fd, answers + sent, plain - sent, 0);
            if (n == -1)
                die("sendmmsg");
            for (int i = sent; i < sent + n; i++) {
                if (answers[i].msg_len != answers[i].msg_hdr.msg_iov->iov_len) {
                    fprintf(stderr, "udp_server: sendmmsg: an answer was cut short\n");
                    return 1;
                }
            }
            sent += n;
        }
        served += got;
    }
    if (close(fd) == -1)
        die("close");
    printf("served %lu\n", datagrams);
    return 0;
}
