"""Delayed and recurring messages on the log and in wire forms; `duolog.delay` decides, and knows neither.

delay_headers    what a message asks for          pending_frames    wire forms while it is pending, and delivered
delays           appends, pauses, runs            delivery_frames   the frames of deliveries
deliveries       delivers what is due             delay_commands    view, cancel, reschedule
schedules        recurring messages               delay_records     state records: replay and snapshot
"""
