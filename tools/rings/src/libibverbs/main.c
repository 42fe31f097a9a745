/*
 * Runs each operation through libibverbs and its provider for the device, between two marks that the counter sees.
 *
 *   libibverbs DEVICE post|wr [clock]
 *
 * `post` uses ibv_post_send and ibv_poll_cq, `wr` the newer ibv_wr_* and ibv_start_poll. Everything that a program can
 * prepare ahead (struct ibv_send_wr, struct ibv_sge) is prepared before the mark. Two queue pairs of one process are
 * connected to each other, others to themselves; nothing but the operation itself lies between the marks. With `clock`
 * there are no marks, and a few operations are timed instead: see clock.c.
 */
#include "rings.h"
#include <stdio.h>
#include <string.h>

/* Ten instructions, one of them a system call: the counter must say so. */
static void calibrate(void)
{
    const char *name = "calibration";
    long number = 39 /* getpid */;
    __asm__ volatile("int3\n nop\n nop\n nop\n nop\n syscall\n nop\n nop\n nop\n nop\n nop\n int3"
                     : "+a"(number) : "D"(name) : "rcx", "r11", "memory");
}

int main(int argc, char **argv)
{
    int clocked = argc == 4 && !strcmp(argv[3], "clock");
    if (argc != 3 && !clocked) {
        fprintf(stderr, "usage: libibverbs DEVICE post|wr [clock]\n");
        return 2;
    }
    int extended = !strcmp(argv[2], "wr");
    set_up(argv[1], extended);
    if (clocked) {
        clock_all(extended);
        return 0;
    }
    calibrate();
    measure_sends(extended);
    if (!extended)
        measure_receives();
    measure_windows(extended);
    measure_polls(extended);
    return 0;
}
